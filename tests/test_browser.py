"""The explorer in a real browser, from file:// and with the network cut off: controls, pictures,
address, phone.

The browser is driven over its DevTools protocol. Where there is none the tests are skipped.
"""

import json

import numpy as np
import pytest
from browser import needs_chromium, written
from explored import album, explored

from atsbook import networks
from atsbook.networks import dataset
from atsbook.runs.settings import settings
from atsbook.runs.table1 import HYBRID
from atsbook.store import Store
from atsbook.widgets import html, to_html
from atsbook.widgets.explorer import pictures
from atsbook.widgets.live import Session
from atslib.data.load import load

SMALL = {"fraction": 0.004, "steps": 6}
SIZE = SMALL | {"model": "convnet-4", "epochs": 1, "images": 3, "frames": 4, "first_steps": 12}
SCENES = {
    "adam-cosine-tv": ("First round", "lenet, untrained"),
    "adam-cosine": ("After training", "convnet-4, trained"),
    "through-policy": ("First round, policy known", "lenet, untrained"),
}
POLICIES = {"": "No policy", "3-1-7": "Searched, first", HYBRID: "Hybrid of both"}
pytestmark = [needs_chromium, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def payload(tmp_path_factory):
    """Three images, three policies, all attacks, four frames, all really attacked."""
    with pytest.MonkeyPatch.context() as patch:
        few = {"train": None, "test": 10}  # the accuracies of the networks are not looked at
        patch.setattr(networks, "load", lambda name, split: load(name, split)[: few[split]])
        dataset.cache_clear()
        own = {"POLICIES": POLICIES, "SCENES": SCENES, "size": SIZE}
        yield album(explored(tmp_path_factory.mktemp("store"), instead=own)).payload
    dataset.cache_clear()


@pytest.fixture(scope="module")
def address(payload, tmp_path_factory):
    """The page under a folder with a space in its name, opened from file://."""
    file = tmp_path_factory.mktemp("page") / "sub path" / "explorer.html"
    file.parent.mkdir()
    return written(file, to_html(payload))


@pytest.fixture
def page(browser, address):
    """The page, open on a desktop in light colours; afterwards it must have no fault."""
    browser.size(1100, 900)
    browser.media(prefers_color_scheme="light")
    browser.open(address)
    yield browser
    assert browser.faults() == []


def assert_shows(browser, payload, slot, *, image, policy, attack, frame):
    """The three pictures of a slot are those of the sheets; decoders may differ by a grey level or
    two.
    """
    clients, frames = pictures(payload, "images.webp"), pictures(payload, f"{attack}-{policy}.webp")
    expected = {
        "original": clients[0, image],
        "target": clients[1 + policy, image],
        "found": frames[image, frame],
    }
    for which, picture in expected.items():
        found = browser.picture(f".ats-slot-{slot} .ats-{which} canvas")
        assert (found.int() - picture.int()).abs().max() <= 2, which
    words = browser.text(f".ats-slot-{slot} .ats-psnr")
    assert words == f"{payload['psnr'][attack][policy][image][frame]:.1f} dB"


# --- the published page -------------------------------------------------------------------------------------


def test_the_page_opens_with_no_policy_beside_the_last_at_the_last_frame(page, payload):
    assert_shows(page, payload, "a", image=0, policy=0, attack=0, frame=3)
    assert_shows(page, payload, "b", image=0, policy=2, attack=0, frame=3)
    assert page.style(".ats-static", "display") == ["none"]


def test_every_control_changes_what_it_names(page, payload):
    page.click(".ats-thumbs button:nth-child(3)")
    assert_shows(page, payload, "a", image=2, policy=0, attack=0, frame=3)
    page.click(".ats-attacks label:nth-child(2) input")
    assert_shows(page, payload, "b", image=2, policy=2, attack=1, frame=3)
    page.choose(".ats-slot-a select", "1")
    assert_shows(page, payload, "a", image=2, policy=1, attack=1, frame=3)
    words = page.text(".ats-slot-a .ats-operations")
    assert words == payload["draws"][1][2]
    assert words.startswith("translate X ")
    page.choose(".ats-slot-b select", "0")
    assert_shows(page, payload, "b", image=2, policy=0, attack=1, frame=3)
    slider = "document.querySelector('.ats-transport input')"
    page.js(f"(s => {{ s.value = 1; s.dispatchEvent(new Event('input')) }})({slider})")
    for slot, policy in (("a", 1), ("b", 0)):
        assert_shows(page, payload, slot, image=2, policy=policy, attack=1, frame=1)
    page.click(".ats-compare input")
    assert page.js("document.querySelector('.ats-slot-b').hidden")
    assert page.js("document.querySelectorAll('.ats-line').length") == 2


def test_an_attack_through_the_policy_says_that_it_shows_the_picture_before_it(page, payload):
    caption = ".ats-slot-b .ats-found figcaption"
    assert page.text(caption) == "Recovered"
    page.click(".ats-attacks label:nth-child(3) input")
    assert page.text(caption) == "Recovered, before the policy"
    assert_shows(page, payload, "b", image=0, policy=2, attack=2, frame=3)
    lead = payload["psnr"][2][2][0][3] - payload["floor"][2][2][0]
    assert page.text(".ats-slot-b .ats-note").startswith(f"{abs(lead):.1f} dB")
    page.click(".ats-attacks label:nth-child(1) input")
    assert page.text(caption) == "Recovered"


def test_the_curves_cursor_is_at_the_frame(page, payload):
    where = "Number(document.querySelector('.ats-cursor').getAttribute('d').match(/M([\\d.]+)/)[1])"
    page.js("document.querySelector('.ats-transport input').focus()")
    found = []
    for key in ("Home", "ArrowRight", "End"):
        page.key(key)
        found.append(page.js(where))
    left, right = (
        42,
        page.js("document.querySelector('.ats-charts svg').clientWidth") - 8,
    )  # the axis
    steps = payload["attacks"][0]["frames"]
    assert np.allclose(
        found, [left + (right - left) * steps[i] / steps[-1] for i in (0, 1, 3)], atol=0.1
    )


def test_play_runs_to_the_end_and_stops(page, payload):
    page.click(".ats-play")
    assert page.text(".ats-play") == "Pause"
    page.until("Number(document.querySelector('.ats-transport input').value) === 1")
    assert_shows(page, payload, "a", image=0, policy=0, attack=0, frame=1)
    page.until("document.querySelector('.ats-play').textContent === 'Play'")
    assert_shows(page, payload, "b", image=0, policy=2, attack=0, frame=3)


def test_everything_works_from_the_keyboard_with_the_focus_in_sight(page, payload):
    stops = []
    for _ in range(12):
        page.key("Tab")
        focus = "(e => [e.className || e.type || e.tagName, e.matches(':focus-visible')])(document.activeElement)"
        name, visible = page.js(focus)
        if name == "BODY":
            break
        stops.append(name)
        assert visible
        if "aria-checked" in page.js("document.activeElement.outerHTML"):
            for key, image in (("ArrowRight", 1), ("ArrowLeft", 0), ("ArrowUp", 2)):
                page.key(key)
                assert page.js("document.activeElement.ariaLabel").startswith(
                    f"Image {image + 1}: "
                )
                assert_shows(page, payload, "a", image=image, policy=0, attack=0, frame=3)
            for word in ("Pause", "Play"):
                page.key(" ")
                assert page.text(".ats-play") == word
            page.js("document.activeElement.focus()")
    assert stops == [
        "radio",
        "checkbox",
        "button",
        "select-one",
        "select-one",
        "ats-play",
        "range",
        "ats-link",
    ]


def test_every_control_and_picture_has_a_name(page):
    controls = {"radio", "checkbox", "combobox", "slider", "button", "link"}
    named = page.named(*controls, "image", "radiogroup", "img")
    assert {role for role, _ in named} >= controls
    assert len(named) > 14
    assert [role for role, name in named if not name] == []


def test_the_address_holds_the_view(page, payload, address):
    page.click(".ats-thumbs button:nth-child(2)")
    page.click(".ats-attacks label:nth-child(2) input")
    page.choose(".ats-slot-a select", "2")
    link = page.js("location.href")
    assert page.js("document.querySelector('.ats-link').href") == link
    page.open(link)
    assert_shows(page, payload, "a", image=1, policy=2, attack=1, frame=3)
    page.js("location.hash = 'image=2&attack=adam-cosine-tv&policy=3-1-7&versus=&frame=1'")
    page.until("document.querySelector('.ats-slot-b').hidden")
    assert_shows(page, payload, "a", image=2, policy=1, attack=0, frame=1)
    page.open(f"{address}#image=99&attack=no&policy=no&frame=-1")
    assert_shows(page, payload, "a", image=0, policy=0, attack=0, frame=3)


@pytest.mark.parametrize("width", [360, 390])
def test_a_phone_shows_all_of_it_and_takes_touches(page, payload, width):
    assert min(page.phone(width)) >= 38
    at = page.centre(".ats-thumbs button:nth-child(2)")
    page.tap(**at)
    page.until("document.querySelector('.ats-thumbs button:nth-child(2)').ariaChecked === 'true'")
    assert_shows(page, payload, "b", image=1, policy=2, attack=0, frame=3)


@pytest.mark.parametrize(
    ("system", "book", "dark"),
    [
        ("light", "", False),
        ("dark", "", True),
        ("dark", "dark", True),
        ("light", "dark", True),
        ("dark", "light", False),
    ],
)
def test_text_can_be_read_in_light_and_dark_and_the_book_has_the_last_word(
    page, system, book, dark
):
    page.media(prefers_color_scheme=system)
    if book:
        page.js(f"document.documentElement.dataset.theme = {book!r}")
    found = page.contrast(".ats-explorer *")
    assert len(found) > 20
    assert found[0][0] >= 4.5, found[0]
    assert page.style(".ats-explorer", "backgroundColor") == [
        "rgb(20, 24, 30)" if dark else "rgb(255, 255, 255)"
    ]


def test_paper_and_pages_without_scripts_have_the_still_picture(page, address):
    page.media("print")
    assert (page.style(".ats-explorer", "display"), page.style(".ats-static", "display")) == (
        ["none"],
        ["block"],
    )
    page.media("")
    with page.without_scripts():
        page.open(address, ready="document.querySelector('.ats-static img').naturalWidth > 300")
        assert page.js("document.querySelector('.ats-static').offsetHeight") > 100
        assert "policy none" in page.js("document.querySelector('.ats-static img').alt")


# --- with a kernel ------------------------------------------------------------------------------------------

MODEL = """
window.sent = []; window.heard = [];
const traits = %s;
const model = {
  get: (name) => traits[name],
  on: (event, call) => window.heard.push(call),
  off() {},
  send: (content) => window.sent.push(content),
};
const file = new Blob([%s], {type: "text/javascript"});
const {default: widget} = await import(URL.createObjectURL(file));
window.leave = await widget.render({model, el: document.getElementById("here")});
"""


@pytest.fixture
def live(browser, payload, tmp_path):
    """The widget as anywidget renders it; the tests say what the kernel says.

    Real attacks run in JupyterLab.
    """
    options = Session(
        settings(profile="smoke", **SMALL), Store(tmp_path / "store"), print
    ).options()
    traits, module = (
        json.dumps(value).replace("<", "\\u003c")
        for value in ({"payload": payload, "options": options}, html.source(*html.EXPLORER))
    )
    style = html.source(*html.EXPLORER_STYLES)
    text = f"<style>{style}</style><div id='here'></div><script type='module'>{MODEL % (traits, module)}</script>"
    browser.size(1100, 900)
    browser.media(prefers_color_scheme="light")
    browser.open(written(tmp_path / "live.html", text))
    yield browser
    assert browser.faults() == []


def test_stop_can_be_pressed_while_a_network_is_trained_first(live):
    say = "window.heard[0]({kind: %r, message: %r, busy: %s}, [])"
    buttons = "['.ats-run .ats-play', '.ats-stop'].map((s) => document.querySelector(s).disabled)"
    assert live.js(buttons) == [False, True]
    live.js(say % ("training", "It is trained again first", "true"))
    assert (live.text(".ats-status"), live.js(buttons)) == (
        "It is trained again first",
        [True, False],
    )
    live.js(say % ("ended", "Stopped in the training", "false"))
    assert (live.text(".ats-status"), live.js(buttons)) == (
        "Stopped in the training",
        [False, True],
    )


@pytest.mark.parametrize("busy", ["false", "true"])
def test_what_was_said_of_an_attack_goes_when_another_is_asked_for_unless_it_runs(live, busy):
    kind = {"false": "ended", "true": "training"}[busy]
    live.js(f"window.heard[0]({{kind: '{kind}', message: 'said', busy: {busy}}}, [])")
    assert live.text(".ats-status") == "said"
    live.choose(".ats-own select", "3")
    assert live.text(".ats-status") == {"false": "", "true": "said"}[busy]


@pytest.mark.parametrize("running", [False, True])
def test_a_view_that_goes_stops_its_attack_if_there_is_one(live, running):
    if running:
        live.js("window.heard[0]({kind: 'training', message: 'trained first', busy: true}, [])")
    live.js("window.leave()")
    assert live.js("window.sent") == ([{"kind": "stop"}] if running else [])
