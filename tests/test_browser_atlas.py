"""The map of all policies in a real browser: search, brush, keys, colours, a phone."""

import re

import numpy as np
import pandas as pd
import pytest
from browser import needs_chromium, written

from atsbook.figures import plots
from atsbook.requests.sweep import all_policies, spaced
from atsbook.runs.study import Study
from atsbook.widgets import data, interactive

pytestmark = [needs_chromium, pytest.mark.usefixtures("one_thread")]
WORDS = ".ats-atlas .ats-words"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A table of twelve policies with made-up scores and gains, and its map's payload."""
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"policy": [str(all_policies()[number]) for number in spaced(12)]})
    for name in ("released", "score", "accuracy"):
        table[name] = draw.random(12)
    for name in ("expected", "measured"):
        table[name] = 10 * draw.random(12)
    scores = {
        "Score as released": table["released"],
        "Score": table["score"],
        "Accuracy score": table["accuracy"],
    }
    gains = {"expected from its operations": table["expected"], "measured": table["measured"]}
    study = Study("smoke", store=tmp_path_factory.mktemp("map"))
    return table, data.atlas(study, list(table["policy"]), scores, gains, ["3-1-7"])


@pytest.fixture
def page(browser, drawn, tmp_path):
    table, payload = drawn
    still = plots.scatter(table["released"], table["measured"], xlabel="score", ylabel="gain")
    browser.size(900, 900)
    browser.media(prefers_color_scheme="light")
    browser.open(
        written(
            tmp_path / "map.html", interactive("atlas", payload, still, alt="Map")._repr_html_()
        )
    )
    yield browser
    assert browser.faults() == []


def typed(page, text):
    page.js(
        "((input, text) => { input.value = text; input.dispatchEvent(new Event('input')); })"
        f"(document.querySelector('.ats-atlas input'), {text!r})"
    )
    return page.text(WORDS)


# The colours on the canvas, as how often each is there. Read from a copy: a browser warns where a page's own canvas is
# read again and again, which the page does not do.
INK = """(() => {
  const canvas = document.querySelector('.ats-cloud'), {width, height} = canvas;
  const found = {marked: 0, bright: 0, plain: 0};
  const copy = new OffscreenCanvas(width, height).getContext('2d', {willReadFrequently: true});
  copy.drawImage(canvas, 0, 0);
  const data = copy.getImageData(0, 0, width, height).data;
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 60) {
    const [r, g, b] = data.slice(i, i + 3);
    found[b > r + 40 ? 'marked' : r > 140 ? 'bright' : 'plain'] += 1;
  }
  return found;
})()"""


def choose(page, place, value):
    """Pick an option of the select in that place."""
    select = f"document.querySelectorAll('.ats-atlas select')[{place}]"
    page.js(f"(s => {{ s.value = '{value}'; s.dispatchEvent(new Event('change')); }})({select})")


def test_a_policy_is_found_by_any_of_its_names(page, drawn):
    table, _ = drawn
    gain, score = table["expected"].to_numpy(), table["released"].to_numpy()
    for place in (1, 7):
        words = typed(page, table["policy"][place])
        assert words.startswith(table["policy"][place])
        assert f"An attack finds {gain[place]:.1f} dB" in words.replace("−", "-")
        assert (
            f"of {100 * (gain < gain[place] - 1e-3).mean():.1f} % of all policies it finds less"
            in words
        )
        assert (
            f"{100 * (score < score[place] - 1e-5).mean():.1f} % of all have a lower one" in words
        )
    same = typed(page, table["policy"][0] + "-28")  # solarize from 256 on does nothing
    assert same.startswith(table["policy"][0])
    assert f"{table['policy'][0]}-28 is the same function." in same
    assert "same function" not in typed(page, table["policy"][0])
    both = "+".join(table["policy"][:2])
    hybrid = typed(page, both)
    assert hybrid.startswith(both)
    assert all(f"{policy}: " in hybrid for policy in table["policy"][:2])
    assert page.js("document.querySelectorAll('.ats-atlas .ats-ring').length") == 2
    assert "is no policy" in typed(page, "3-99")


def test_a_rectangle_says_what_its_policies_share(page, drawn):
    box = page.js(
        "(r => [r.x, r.y, r.width, r.height])(document.querySelector('.ats-plot').getBoundingClientRect())"
    )
    corners = [(box[0] + 2, box[1] + 2), (box[0] + box[2] - 2, box[1] + box[3] - 2)]
    for kind, (x, y) in zip(
        ("mousePressed", "mouseMoved", "mouseReleased"), (*corners, corners[1]), strict=True
    ):
        page(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1
        )
    words = page.text(WORDS)
    gain = drawn[0]["expected"].to_numpy()
    assert words.startswith(f"{len(gain)} policies")
    assert f"Mean {gain.mean():.1f} dB" in words
    least = drawn[0]["policy"][int(np.argmin(gain))]
    assert f"Least gain: {least}" in words
    assert page.js("document.querySelectorAll('.ats-brush').length") == 1


def test_a_click_chooses_the_nearest_and_keys_go_on_by_score(page, drawn):
    table = drawn[0]
    order = table["policy"][np.argsort(table["released"], kind="stable")].tolist()
    typed(page, order[3])
    ring = page.js(
        "(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector('.ats-ring').getBoundingClientRect())"
    )
    typed(page, order[0])
    for kind in ("mousePressed", "mouseReleased"):
        page(
            "Input.dispatchMouseEvent",
            type=kind,
            x=ring[0],
            y=ring[1],
            button="left",
            buttons=1,
            clickCount=1,
        )
    assert page.text(WORDS).startswith(order[3])
    page.js("document.querySelector('.ats-atlas .ats-plot').focus()")
    for key, place in (("ArrowRight", 4), ("ArrowLeft", 3), ("Home", 0)):
        page.key(key)
        assert page.text(WORDS).startswith(order[place])
    assert order[0] in page.js("document.querySelector('.ats-atlas .ats-plot').ariaLabel")


def test_an_operation_colours_its_policies_and_dark_pages_have_bright_dots(page, drawn):
    page.until(f"{INK}.plain > 0")
    assert page.js(f"{INK}.marked + {INK}.bright") == 0
    choose(
        page,
        2,
        1 + drawn[1]["ids"].index(int(drawn[0]["policy"][1].split("-")[0])),
    )
    page.until(f"{INK}.marked > 0")
    choose(page, 2, 0)
    page.media(prefers_color_scheme="dark")
    page.until(f"{INK}.bright > 0 && {INK}.plain === 0")


def test_the_axes_can_be_chosen_and_a_phone_shows_all(page, drawn):
    names = [axis["name"] for axis in drawn[1]["x"]]
    options = page.js(
        "[...document.querySelectorAll('.ats-atlas select')[0].options].map((o) => o.textContent)"
    )
    assert options == names
    choose(page, 0, names.index("Accuracy score"))
    assert re.search(r"Accuracy score: -?[\d.]+; ", page.text(WORDS))
    page.size(360, 800, mobile=True)
    page.until("document.querySelector('.ats-cloud').width > 0")
    assert page.js("document.documentElement.scrollWidth <= 360")


def test_names_of_policies_that_lie_together_cover_neither_each_other_nor_a_ring(browser, tmp_path):
    """Policies about as near to each other as the published ones, between two far away."""
    policies = [str(all_policies()[number]) for number in spaced(10)]
    near = np.array(
        [
            [0.2, 0.37, 0.39, 0.435, 0.535, 0.55, 0.585, 0.615, 0.635, 0.9],
            [0.0, 3.40, 2.80, 2.500, 3.800, 3.90, 3.600, 3.450, 3.150, 6.5],
        ]
    )
    scores, gains = {"Score": near[0]}, {"gain": near[1]}
    study = Study("smoke", store=tmp_path / "map")
    payload = data.atlas(study, policies, scores, gains, policies) | {"start": policies[-1]}
    still = plots.scatter(pd.Series(near[0]), pd.Series(near[1]), xlabel="score", ylabel="gain")
    browser.size(900, 900)
    html = interactive("atlas", payload, still, alt="Map")._repr_html_()
    drawn = "document.querySelector('.ats-atlas svg g:last-of-type text')"
    browser.open(written(tmp_path / "map.html", html), ready=drawn)
    boxes = """(what => [...document.querySelectorAll(`.ats-atlas svg g:last-of-type ${what}`)].map(node =>
        (box => [box.left, box.right, box.top, box.bottom])(node.getBoundingClientRect())))"""
    names, rings = (np.array(browser.js(f"{boxes}({what!r})")) for what in ("text", "circle"))
    assert len(names) == 10
    assert len(rings) == 11  # and the chosen one's
    low, high = np.s_[:, 0::2], np.s_[:, 1::2]
    others = np.concatenate([names, rings[:10]])
    shared = np.minimum(names[high][:, None], others[high]) - np.maximum(
        names[low][:, None], others[low]
    )
    overlap = (shared > 0.5).all(-1)
    overlap[np.arange(10), np.arange(10)] = False
    assert not overlap.any()
    (left, right, top, bottom) = browser.js(
        "(box => [box.left, box.right, box.top, box.bottom])"
        "(document.querySelector('.ats-atlas .ats-plot').getBoundingClientRect())"
    )
    assert names[:, 0].min() >= left
    assert names[:, 1].max() <= right
    assert names[:, 2].min() >= top
    assert names[:, 3].max() <= bottom
