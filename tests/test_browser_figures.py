"""The small figures in a real browser: operations bit for bit, pointer, keys and touch, phone,
dark, paper.
"""

import base64
import json

import pytest
import torch
from browser import needs_chromium, written
from checks import pictures

from atsbook.networks import dataset
from atsbook.widgets import data
from atsbook.widgets.html import source
from atslib.data.load import load
from atslib.policies.operations import OPS, apply
from atslib.rng import rng

pytestmark = [needs_chromium, pytest.mark.usefixtures("one_thread")]
KINDS = ("ranking", "scatter")


@pytest.fixture(scope="module")
def address(drawn_figures, tmp_path_factory):
    """Both below each other, as one page."""
    body = "".join(getattr(drawn_figures, kind)._repr_html_() for kind in KINDS)
    return written(tmp_path_factory.mktemp("figures") / "two figures.html", body)


READY = "document.querySelectorAll('.ats-on').length === 2 && document.querySelectorAll('circle[cx]').length > 30"


@pytest.fixture
def page(browser, address):
    """The page, open on a desktop in light colours; afterwards it must have no fault."""
    browser.size(1100, 900)
    browser.media(prefers_color_scheme="light")
    browser.open(address, READY)
    yield browser
    assert browser.faults() == []


def shown(page, kind, place):
    """The canvas of that number in a figure."""
    canvases = f"document.querySelectorAll('.ats-{kind} .ats-pictures canvas')"
    page.js(f"{canvases}.forEach((canvas, i) => {{ canvas.dataset.place = i; }})")
    return page.picture(f".ats-{kind} canvas[data-place='{place}']")


# --- operations ---------------------------------------------------------------------------------------------


def random(*shape, low=0, high=256):
    return torch.randint(low, high, shape, dtype=torch.uint8, generator=rng(0, *shape, low))


PICTURES = {
    "shapes": lambda: load("shapes", "test").pixels[:3],
    "grey shapes": lambda: load("shapes-grey", "test").pixels[:2],
    "noise": lambda: random(2, 3, 32, 32),
    "one-channel noise": lambda: random(1, 1, 28, 28),
    "few levels": lambda: random(1, 3, 32, 32, low=100, high=104),
    "constant": lambda: torch.cat(
        [torch.full((1, 3, 32, 32), value, dtype=torch.uint8) for value in (0, 77, 255)]
    ),
    "oblong": lambda: random(1, 3, 5, 9),
    "below the filter's size": lambda: random(1, 3, 2, 2),
    "64 pixels": lambda: random(1, 3, 64, 64),
}
APPLY = """(([text, size]) => {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return OPERATIONS.flatMap((op) => [1, -1].map((sign) =>
    btoa(String.fromCharCode(...applied(op, {bytes, size}, sign).bytes))));
})(%s)"""


@pytest.fixture(scope="module")
def bench(browser, tmp_path_factory):
    """A page with nothing but the operations."""
    table = (
        f"globalThis.OPERATIONS = {json.dumps(data.operations())}; globalThis.applied = applied;"
    )
    body = f"<script type='module'>{source('operations.js')}\n{table}</script>"
    browser.open(
        written(tmp_path_factory.mktemp("bench") / "bench.html", body), "globalThis.applied"
    )
    return browser


@pytest.mark.parametrize("name", PICTURES)
def test_every_operation_with_both_signs_is_the_librarys_bit_for_bit(bench, name):
    for pixels in PICTURES[name]():
        given = json.dumps(
            [base64.b64encode(pixels.numpy().tobytes()).decode(), list(pixels.shape)]
        )
        found = iter(bench.js(APPLY % given))
        for index in range(len(OPS)):
            for sign in (1, -1):
                expected = apply(index, pixels[None], sign)[0].contiguous().numpy().tobytes()
                assert base64.b64decode(next(found)) == expected, (index, OPS[index], sign)


# --- ranking ------------------------------------------------------------------------------------------------


def dot(page, kind, place):
    """The middle of a dot in the window."""
    dots = f"document.querySelectorAll('.ats-{kind} [role=radio].ats-pick')"
    page.js(f"{dots}.forEach((dot, i) => {{ dot.dataset.place = i; }})")
    at = f".ats-{kind} .ats-pick[data-place='{place}']"
    return page.centre(at if kind == "scatter" else f"{at} circle")


def assert_ranking_shows(page, payload, place):
    row = payload["rows"][place]
    op = payload["operations"][row["id"]]
    assert page.text(".ats-ranking .ats-name") == f"{row['id']} {op['words']}"
    words = page.text(".ats-ranking .ats-words")
    interval = f"interval {row['low']:.3f} to {row['high']:.3f}, {row['n']} images"
    assert f"Privacy score {row['s_pri']:.3f}, {interval}" in words
    assert (
        f"Rank {row['rank']}; with other images {row['rank low']} to {row['rank high']};" in words
    )
    assert (f"Same function as {row['same as']}" in words) == bool(row["same as"])
    image = dataset("shapes", "test").pixels[5:6]
    assert torch.equal(shown(page, "ranking", 0), image[0])
    assert torch.equal(shown(page, "ranking", 1), apply(row["id"], image)[0])
    if op["signed"]:
        assert torch.equal(shown(page, "ranking", 2), apply(row["id"], image, -1)[0])
    else:
        assert page.js("document.querySelector('.ats-ranking figure:nth-child(3)').hidden")
    checked = "document.querySelectorAll('.ats-ranking .ats-pick[aria-checked=true]')"
    assert page.js(f"[...{checked}].map((d) => d.ariaLabel.split(':')[0])") == [str(row["id"])]


def test_the_ranking_follows_the_pointer_and_the_keys(page, drawn_figures):
    payload = drawn_figures.ranking.payload
    assert_ranking_shows(page, payload, 0)
    last = len(payload["rows"]) - 1
    for place in (20, 7):
        page.hover(**dot(page, "ranking", place))
        assert_ranking_shows(page, payload, place)
    page.js("document.querySelector('.ats-ranking .ats-pick[tabindex=\"0\"]').focus()")
    for key, place in (
        ("ArrowRight", 8),
        ("ArrowUp", 7),
        ("End", last),
        ("ArrowRight", 0),
        ("ArrowLeft", last),
    ):
        page.key(key)
        assert_ranking_shows(page, payload, place)
        assert page.js("document.activeElement.getAttribute('aria-checked')") == "true"


def test_the_ranking_names_the_other_ids_of_a_function(page, drawn_figures):
    rows = drawn_figures.ranking.payload["rows"]
    place = next(i for i, row in enumerate(rows) if row["id"] == 24)
    page.hover(**dot(page, "ranking", place))
    assert rows[place]["same as"] == "42, 43, 48"
    assert "Same function as 42, 43, 48" in page.text(".ats-ranking .ats-words")


# --- scatter ------------------------------------------------------------------------------------------------


def assert_scatter_shows(page, payload, place, network):
    point, files = payload["points"][place], {}
    assert page.text(".ats-scatter .ats-name") == point["id"]
    assert page.text(".ats-scatter .ats-operations") == point["words"]
    score = f"Privacy score {point['score'][network]:.3f}"
    expected = f"{score}, PSNR {point['psnr']:.1f} dB, means of {payload['n']} images"
    assert expected in page.text(".ats-scatter .ats-words")
    for name in ("images", "client", "found"):
        files[name] = pictures(payload, f"{name}.webp")
    for image in range(2):
        triple = (
            files["images"][0, image],
            files["client"][image, place],
            files["found"][image, place],
        )
        for i, picture in enumerate(triple):  # decoders may differ by a grey level or two
            assert (shown(page, "scatter", 3 * image + i).int() - picture.int()).abs().max() <= 2
        said = page.text(f".ats-scatter .ats-pictures:nth-child({image + 2}) .ats-found figcaption")
        assert said == f"Recovered, {point['each'][image]:.1f} dB"


def test_the_scatter_shows_the_reconstructions_of_the_point_under_the_pointer(page, drawn_figures):
    payload = drawn_figures.scatter.payload
    for place in range(len(payload["points"])):
        page.hover(**dot(page, "scatter", place))
        assert_scatter_shows(page, payload, place, payload["main"])


def test_keys_walk_through_the_scatter_by_score_and_by_psnr(page, drawn_figures):
    payload = drawn_figures.scatter.payload
    points = range(len(payload["points"]))
    by_score = sorted(points, key=lambda i: payload["points"][i]["score"][payload["main"]])
    by_psnr = sorted(points, key=lambda i: payload["points"][i]["psnr"])
    page.js("document.querySelector('.ats-scatter .ats-pick[tabindex=\"0\"]').focus()")
    page.key("Home")
    assert_scatter_shows(page, payload, by_score[0], payload["main"])
    page.key("ArrowRight")
    assert_scatter_shows(page, payload, by_score[1], payload["main"])
    page.key("ArrowUp")
    above = by_psnr[(by_psnr.index(by_score[1]) + 1) % len(by_psnr)]
    assert_scatter_shows(page, payload, above, payload["main"])
    assert page.js("document.activeElement.ariaLabel").startswith(
        f"Policy {payload['points'][above]['id']}: "
    )


def test_the_switch_changes_the_network_of_the_scores(page, drawn_figures):
    payload = drawn_figures.scatter.payload
    places = (
        "[...document.querySelectorAll('.ats-scatter .ats-pick')].map((d) => d.getAttribute('%s'))"
    )
    before, heights = page.js(places % "cx"), page.js(places % "cy")
    page.click(".ats-scatter .ats-attacks label:nth-child(1) input")
    assert page.js(places % "cx") != before
    assert page.js(places % "cy") == heights
    assert_scatter_shows(page, payload, 0, 0)
    caption = page.text(".ats-scatter figcaption")
    assert f"Pearson r = {payload['networks'][0]['r']} over 6 policies" in caption
    order = sorted(range(6), key=lambda i: payload["points"][i]["score"][0])
    drawn = [float(x) for x in page.js(places % "cx")]
    assert sorted(range(6), key=drawn.__getitem__) == order


# --- all of them --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [360, 390])
def test_a_phone_shows_all_of_it_and_takes_touches(page, drawn_figures, width):
    heights = page.phone(
        width, f"document.querySelector('.ats-ranking svg').viewBox.baseVal.width < {width}"
    )
    assert heights == []  # points and networks are chosen, by no button and from no list
    page.tap(**dot(page, "ranking", 20))
    assert_ranking_shows(page, drawn_figures.ranking.payload, 20)
    page.tap(**dot(page, "scatter", 3))
    assert_scatter_shows(page, drawn_figures.scatter.payload, 3, 1)


def test_every_control_point_and_picture_has_a_name(page):
    named = page.named("radio", "combobox", "button", "image", "img", "radiogroup")
    # Points, policies, networks.
    assert sum(role == "radio" for role, _ in named) == 28 + 6 + 3
    assert [role for role, name in named if not name] == []
    assert "3: translate X 9, privacy score " in " ".join(name for _, name in named)


def test_one_tab_stop_for_each_set_of_points_and_the_focus_in_sight(page):
    stops = []
    for _ in range(20):
        page.key("Tab")
        focus = (
            "(e => [e.getAttribute('class') || e.type || e.tagName, e.matches(':focus-visible')])"
        )
        name, visible = page.js(f"{focus}(document.activeElement)")
        if name == "BODY":
            break
        assert visible
        stops.append(name.split()[0])
    assert stops == ["ats-pick", "radio", "ats-pick"]


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_in_light_and_dark(page, dark):
    if dark:
        page.js("document.documentElement.dataset.theme = 'dark'")
    found = page.contrast(".ats-explorer *")
    assert len(found) > 60
    assert found[0][0] >= 4.5, found[:5]
    assert page.style(".ats-scatter", "backgroundColor") == [
        "rgb(20, 24, 30)" if dark else "rgb(255, 255, 255)"
    ]


def test_paper_and_pages_without_scripts_have_the_stills(page, address):
    page.media("print")
    assert page.style(".ats-explorer", "display") == ["none"] * 2
    assert page.style(".ats-static", "display") == ["block"] * 2
    page.media("")
    with page.without_scripts():
        page.open(
            address,
            ready="[...document.querySelectorAll('.ats-static img')].every((e) => e.naturalWidth > 100)",
        )
        alts = page.js("[...document.querySelectorAll('.ats-static img')].map((e) => e.alt)")
        assert alts == [f"The still <{kind}>" for kind in KINDS]
        assert (
            min(page.js("[...document.querySelectorAll('.ats-static')].map((e) => e.offsetHeight)"))
            > 50
        )
