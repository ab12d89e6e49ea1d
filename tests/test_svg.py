"""A figure as an element of a page: letters that a phone shows, colours that go with the page's."""

import re
import xml.etree.ElementTree as ET

import matplotlib.pyplot as plt
import pytest

from atsbook.figures.svg import as_svg

SVG = "{http://www.w3.org/2000/svg}"
PHONE = 346  # pixels of a page's column on a phone of 400


def drawn():
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    left.plot([1, 2, 3], [2.0, 4.0, 8.0], color="#0072B2")
    left.set(xlabel="steps", ylabel="found <of 100>, %", title="LeNet")
    right.set_title("ConvNet", fontsize=6)
    return figure


@pytest.fixture
def figure():
    yield drawn()
    plt.close("all")


def test_every_letter_is_nine_pixels_high_on_a_phone_and_none_is_a_drawing(figure):
    svg = ET.fromstring(as_svg(figure))
    width = float(svg.get("viewBox").split()[2])
    letters = list(svg.iter(f"{SVG}text"))
    assert {"LeNet", "ConvNet", "steps"} <= {text.text for text in letters}
    sizes = [float(re.search(r"font-size: ([\d.]+)px", text.get("style"))[1]) for text in letters]
    assert min(sizes) * PHONE / width >= 9


def test_what_is_black_takes_the_pages_colour_and_a_line_keeps_its_own(figure):
    text = as_svg(figure)
    assert "#000000" not in text
    assert "DejaVu" not in text
    assert "stroke: currentColor" in text
    assert "stroke: #0072b2" in text
    assert all(
        letter.get("fill") == "currentColor" for letter in ET.fromstring(text).iter(f"{SVG}text")
    )


@pytest.mark.parametrize(("names", "columns"), [(["none", "hybrid"], 4), (["a long name"] * 5, 3)])
def test_no_name_of_a_legend_is_cut_and_one_that_fits_stays_as_it_is(figure, names, columns):
    lines = list(figure.axes[0].lines) * len(names)
    legend = figure.legend(lines, names, loc="outside upper left", ncols=4)
    as_svg(figure)
    (after,) = figure.legends
    assert after.get_window_extent().width <= figure.bbox.width
    assert [text.get_text() for text in after.get_texts()] == names
    assert (after is legend) == (columns == 4)


def test_it_says_what_it_shows_and_is_the_same_text_where_it_is_drawn_again(figure):
    text = as_svg(figure)
    assert ET.fromstring(text).get("aria-label") == "found <of 100>, %; steps; LeNet; ConvNet"
    assert as_svg(drawn()) == text
    assert "<metadata" not in text
