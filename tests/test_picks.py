"""The picture of the measure: what it shows is what it was given."""

import base64
import io
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from atsbook.figures.bars import bars
from atsbook.figures.picks import MISSED, PICKED, Side, on_paper, picked

SVG = "{http://www.w3.org/2000/svg}"


def side(found, right=True, kind=float):
    pictures = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8)).astype(np.uint8)
    if kind is float:
        pictures = pictures / 255
    return Side(*pictures, right=right, found=found)


def test_a_square_is_full_for_each_photograph_that_is_picked_out_and_their_number_stands_beside_them():
    found = [place % 3 != 0 for place in range(100)]
    svg = ET.fromstring(picked({"without": side(found), "with": side([True] * 100)}, 100))
    squares = [
        each
        for each in svg.iter(f"{SVG}rect")
        if "stroke-width" not in each.attrib or each.get("stroke-width") == "1.5"
    ]
    assert [each.get("fill") == PICKED for each in squares] == [*found, *[True] * 100]
    texts = [each.text for each in svg.iter(f"{SVG}text")]
    assert str(sum(found)) in texts
    assert "100" in texts
    assert svg.get("aria-label").startswith(f"without: {sum(found)} of 100 picked out")


@pytest.mark.parametrize("kind", [float, np.uint8])
def test_pictures_are_shown_pixel_by_pixel(kind):
    given = side([True], kind=kind)
    shown = re.findall(r'base64,([^"]+)"', picked({"a": given}, 100))
    assert len(shown) == 4
    for data, picture in zip(
        shown, (given.photograph, given.used, given.rebuilt, given.pick), strict=True
    ):
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
        whole = picture if kind is np.uint8 else np.rint(255 * picture)
        assert (pixels.transpose(2, 0, 1) == whole).all()


@pytest.mark.parametrize(
    ("right", "mark", "color"), [(True, "l5 6", PICKED), (False, "l12 12", MISSED)]
)
def test_the_pick_says_whether_it_is_right_by_mark_and_colour(right, mark, color):
    svg = picked({"a": side([right], right)}, 100)
    assert mark in svg
    assert f'stroke="{color}" stroke-width="5"' in svg


def test_as_a_file_it_brings_a_light_ground_and_dark_letters():
    svg = picked({"a": side([True])}, 100)
    file = ET.fromstring(on_paper(svg))
    assert "currentColor" in svg
    assert "currentColor" not in on_paper(svg)
    ground = next(iter(file))
    assert (ground.tag, ground.get("fill")) == (f"{SVG}rect", "#ffffff")
    assert "system-ui" in file.get("font-family")


def test_a_bar_is_as_long_as_its_number_and_says_it():
    rows = {
        "none": (96.0, 90.0, 99.0),
        "policy": (48.0, 48.0, 48.0),
        "less than nothing": (-0.6, -3, 2),
        "nearly nothing": (-0.3, -3, 2),
    }
    svg = ET.fromstring(bars(rows, ["none", "policy", "other", "other"]))
    drawn = [float(each.get("width")) for each in svg.iter(f"{SVG}rect") if each.get("class")]
    assert drawn[1] == pytest.approx(drawn[0] / 2, abs=0.1)
    assert drawn[2] == 0
    texts = [each.text for each in svg.iter(f"{SVG}text")]
    assert texts[::2] == list(rows)
    assert texts[1::2] == ["96 %", "48 %", "−1 %", "0 %"]
    assert len(list(svg.iter(f"{SVG}path"))) == 3  # one number has no interval
    assert svg.get("aria-label").startswith("none: 96 %; policy: 48 %")


def test_all_bars_have_a_digit_more_where_one_is_nearly_the_whole():
    rows = {
        "nearly all": (99.7, 98.0, 100.0),
        "none": (96.0, 90.0, 99.0),
        "all": (100.0, 99.0, 100.0),
    }
    svg = ET.fromstring(bars(rows, ["other", "none", "other"]))
    assert [each.text for each in svg.iter(f"{SVG}text")][1::2] == ["99.7 %", "96.0 %", "100.0 %"]
