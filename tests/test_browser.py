"""The explorer in a real browser, from file:// and with the network cut off: controls, pictures, address, phone.

The browser is driven over its DevTools protocol. Where there is none the tests are skipped.
"""

import base64
import json
import os
import time

import numpy as np
import pytest
import torch
from browser import needs_chromium

from atslib.data.load import load
from atslib.report.pages import explorer
from atslib.report.units import networks
from atslib.report.units.networks import dataset
from atslib.report.units.settings import settings
from atslib.report.units.table1 import HYBRID
from atslib.report.widgets import html, to_html
from atslib.report.widgets.explorer import pictures
from atslib.report.widgets.live import Session
from atslib.store import Store, project_root

PAGE = project_root() / "book/_build/html/results/explorer.html"
SMALL = {"profile": "smoke", "fraction": 0.004, "steps": 6, "control_steps": 6}
pytestmark = [needs_chromium, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def payload(tmp_path_factory):
    """Three images, three policies, both presets, four frames, all really attacked."""
    with pytest.MonkeyPatch.context() as patch:
        shown = (3, ("", "3-1-7", HYBRID), ("adam-cosine-tv", "adam-cosine"), 4)
        patch.setattr(explorer, "shown", lambda settings: shown)
        few = {"train": None, "test": 10}  # the accuracies of the networks are not looked at
        patch.setattr(networks, "load", lambda name, split: load(name, split)[: few[split]])
        dataset.cache_clear()
        yield explorer.run(settings(**SMALL), Store(tmp_path_factory.mktemp("store"))).payload
    dataset.cache_clear()


@pytest.fixture(scope="module")
def address(payload, tmp_path_factory):
    """The page under a folder with a space in its name, opened from file://."""
    file = tmp_path_factory.mktemp("page") / "sub path" / "explorer.html"
    file.parent.mkdir()
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    file.write_text(f"{head}<title>Explorer</title><body>{to_html(payload)}</body></html>", encoding="utf-8")
    return file.as_uri()


@pytest.fixture
def page(browser, address):
    """The page, open on a desktop in light colours; afterwards it must have no fault."""
    browser.size(1100, 900)
    browser.media(prefers_color_scheme="light")
    browser.open(address)
    yield browser
    assert browser.faults() == []


def seen(browser, slot, which):
    """The canvas of a slot as (C, H, W) uint8: original, target or found."""
    height, width, *data = browser.canvas(f".ats-slot-{slot} .ats-{which} canvas")
    return torch.tensor(data, dtype=torch.uint8).view(height, width, 4)[..., :3].permute(2, 0, 1)


def assert_shows(browser, payload, slot, *, image, policy, attack, frame):
    """The three pictures of a slot are those of the sheets; decoders may differ by a grey level or two."""
    clients, frames = pictures(payload, "images.webp"), pictures(payload, f"{attack}-{policy}.webp")
    for which, expected in (("original", clients[0, image]), ("target", clients[1 + policy, image])):
        assert (seen(browser, slot, which).int() - expected.int()).abs().max() <= 2, which
    assert (seen(browser, slot, "found").int() - frames[image, frame].int()).abs().max() <= 2
    words = browser.js(f"document.querySelector('.ats-slot-{slot} .ats-psnr').textContent")
    assert words == f"{payload['psnr'][attack][policy][image][frame]:.1f} dB"


# --- the published page -------------------------------------------------------------------------------------


def test_the_page_opens_with_no_policy_beside_the_last_at_the_last_frame(page, payload):
    assert_shows(page, payload, "a", image=0, policy=0, attack=0, frame=3)
    assert_shows(page, payload, "b", image=0, policy=2, attack=0, frame=3)
    assert page.js("getComputedStyle(document.querySelector('.ats-static')).display") == "none"


def test_every_control_changes_what_it_names(page, payload):
    page.click(".ats-thumbs button:nth-child(3)")
    assert_shows(page, payload, "a", image=2, policy=0, attack=0, frame=3)
    page.click(".ats-attacks label:nth-child(2) input")
    assert_shows(page, payload, "b", image=2, policy=2, attack=1, frame=3)
    page.choose(".ats-slot-a select", "1")
    assert_shows(page, payload, "a", image=2, policy=1, attack=1, frame=3)
    words = page.js("document.querySelector('.ats-slot-a .ats-operations').textContent")
    assert words == payload["draws"][1][2]
    assert words.startswith("translate X ")
    page.choose(".ats-slot-b select", "0")
    assert_shows(page, payload, "b", image=2, policy=0, attack=1, frame=3)
    page.js(
        "(s => { s.value = 1; s.dispatchEvent(new Event('input')) })(document.querySelector('.ats-transport input'))"
    )
    for slot, policy in (("a", 1), ("b", 0)):
        assert_shows(page, payload, slot, image=2, policy=policy, attack=1, frame=1)
    page.click(".ats-compare input")
    assert page.js("document.querySelector('.ats-slot-b').hidden")
    assert page.js("document.querySelectorAll('.ats-line').length") == 2


def test_the_curves_cursor_is_at_the_frame(page, payload):
    where = "Number(document.querySelector('.ats-cursor').getAttribute('d').match(/M([\\d.]+)/)[1])"
    page.js("document.querySelector('.ats-transport input').focus()")
    found = []
    for key in ("Home", "ArrowRight", "End"):
        page.key(key)
        found.append(page.js(where))
    left, right = 42, page.js("document.querySelector('.ats-charts svg').clientWidth") - 8  # the axis
    steps = payload["attacks"][0]["frames"]
    assert np.allclose(found, [left + (right - left) * steps[i] / steps[-1] for i in (0, 1, 3)], atol=0.1)


def test_play_runs_to_the_end_and_stops(page, payload):
    page.click(".ats-play")
    assert page.js("document.querySelector('.ats-play').textContent") == "Pause"
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
                assert page.js("document.activeElement.ariaLabel").startswith(f"Image {image + 1}: ")
                assert_shows(page, payload, "a", image=image, policy=0, attack=0, frame=3)
            page.key(" ")
            assert page.js("document.querySelector('.ats-play').textContent") == "Pause"
            page.key(" ")
            assert page.js("document.querySelector('.ats-play').textContent") == "Play"
            page.js("document.activeElement.focus()")
    assert stops == ["radio", "checkbox", "button", "select-one", "select-one", "ats-play", "range", "ats-link"]


def test_every_control_and_picture_has_a_name(page):
    nodes = page("Accessibility.getFullAXTree")["nodes"]
    roles = {"radio", "checkbox", "combobox", "slider", "button", "image", "link", "radiogroup", "img"}
    found = [(n["role"]["value"], n.get("name", {}).get("value")) for n in nodes if not n["ignored"]]
    named = [(role, name) for role, name in found if role in roles]
    assert {role for role, _ in named} >= {"radio", "checkbox", "combobox", "slider", "button", "link"}
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
    page.size(width, 800, mobile=True)
    page.until(f"innerWidth === {width}")
    assert page.js("document.documentElement.scrollWidth") == width
    heights = "[...document.querySelectorAll('.ats-explorer :is(button, select)')].map((e) => e.offsetHeight)"
    assert min(page.js(heights)) >= 38
    at = page.centre(".ats-thumbs button:nth-child(2)")
    page.tap(**at)
    page.until("document.querySelector('.ats-thumbs button:nth-child(2)').ariaChecked === 'true'")
    assert_shows(page, payload, "b", image=1, policy=2, attack=0, frame=3)


@pytest.mark.parametrize("dark", ["", "the system", "the book", "the book alone"])
def test_text_can_be_read_in_light_and_dark(page, dark):
    page.media(prefers_color_scheme="dark" if dark in ("the system", "the book") else "light")
    if dark.startswith("the book"):
        page.js("document.documentElement.dataset.theme = 'dark'")
    found = page.contrast(".ats-explorer *")
    assert len(found) > 20
    assert found[0][0] >= 4.5, found[0]
    ground = page.js("getComputedStyle(document.querySelector('.ats-explorer')).backgroundColor")
    assert ground == ("rgb(20, 24, 30)" if dark else "rgb(255, 255, 255)")


def test_a_light_book_stays_light_on_a_dark_system(page):
    page.media(prefers_color_scheme="dark")
    page.js("document.documentElement.dataset.theme = 'light'")
    ground = "getComputedStyle(document.querySelector('.ats-explorer')).backgroundColor"
    assert page.js(ground) == "rgb(255, 255, 255)"


def test_paper_and_pages_without_scripts_have_the_still_picture(page, address):
    page.media("print")
    assert page.js("getComputedStyle(document.querySelector('.ats-explorer')).display") == "none"
    assert page.js("getComputedStyle(document.querySelector('.ats-static')).display") == "block"
    page.media("")
    page("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.open(address, ready="document.querySelector('.ats-static img').naturalWidth > 300")
        assert page.js("document.querySelector('.ats-static').offsetHeight") > 100
        assert "policy none" in page.js("document.querySelector('.ats-static img').alt")
    finally:
        page("Emulation.setScriptExecutionDisabled", value=False)


# --- with a kernel ------------------------------------------------------------------------------------------

MODEL = """
window.sent = []; window.heard = [];
const traits = %s;
const text = (bytes) => btoa(String.fromCharCode(...new Uint8Array(bytes)));
const model = {
  get: (name) => traits[name],
  on: (event, call) => window.heard.push(call),
  off() {},
  send: (content, _, buffers) => window.sent.push([content, (buffers ?? []).map(text)]),
};
const file = new Blob([%s], {type: "text/javascript"});
const {default: widget} = await import(URL.createObjectURL(file));
window.leave = await widget.render({model, el: document.getElementById("here")});
"""


@pytest.fixture
def live(browser, payload, tmp_path):
    """The widget as anywidget renders it, joined to a real session by hand; `step()` carries the messages."""
    messages = []
    session = Session(settings(**SMALL), Store(tmp_path / "store"), lambda *message: messages.append(message))
    traits = json.dumps({"payload": payload, "options": session.options()}).replace("<", "\\u003c")
    module = json.dumps(html.source(*html.EXPLORER)).replace("<", "\\u003c")
    style = html.source(*html.EXPLORER_STYLES)
    text = f"<style>{style}</style><div id='here'></div><script type='module'>{MODEL % (traits, module)}</script>"
    file = tmp_path / "live.html"
    file.write_text(f'<!doctype html><meta charset="utf-8"><body>{text}</body>', encoding="utf-8")
    browser.size(1100, 900)
    browser.media(prefers_color_scheme="light")
    browser.open(file.as_uri())

    def step():
        for content, buffers in browser.js("window.sent.splice(0)"):
            request = {name: value for name, value in content.items() if name != "kind"}
            data = base64.b64decode(buffers[0]) if buffers else b""
            _ = session.stop() if content["kind"] == "stop" else session.run(**request, upload=data)
        while messages:
            content, buffers = messages.pop(0)
            texts = json.dumps([base64.b64encode(data).decode() for data in buffers])
            browser.js(
                f"window.heard[0]({json.dumps(content)}, {texts}.map((t) => "
                "new DataView(Uint8Array.from(atob(t), (c) => c.charCodeAt(0)).buffer)))"
            )

    yield browser, session, step
    session.stop()
    session.wait(10)
    assert browser.faults() == []


def status(browser):
    return browser.js("document.querySelector('.ats-status').textContent")


def carry(live, ready, seconds=20):
    """Carry messages until the status says `ready`."""
    browser, _, step = live
    end = time.monotonic() + seconds
    while ready not in status(browser):
        assert time.monotonic() < end, status(browser)
        step()
        time.sleep(0.02)


def test_a_reader_runs_stops_and_repairs_an_attack(live):
    browser, _, step = live
    browser.choose(".ats-own label:nth-of-type(1) select", "3")
    browser.choose(".ats-own label:nth-of-type(2) select", "0")
    browser.js("document.querySelector('.ats-own input[type=number]').value = 8")
    browser.click(".ats-run .ats-play")
    carry(live, "Finished: 8 steps")
    assert browser.js("document.querySelector('.ats-slot-a select').value") == "-1"
    assert "→ invert 7" in browser.js("document.querySelector('.ats-slot-a .ats-operations').textContent")
    assert browser.js("document.querySelector('.ats-step').textContent") == "8 / 8"
    assert not torch.equal(seen(browser, "a", "target"), seen(browser, "a", "original"))

    browser.js("document.querySelector('.ats-own input[type=number]').value = 9999")
    browser.click(".ats-run .ats-play")
    carry(live, "must be a whole number from 2 to 2000")
    assert browser.js("document.querySelector('.ats-status').classList.contains('ats-fault')")

    browser.js("document.querySelector('.ats-own input[type=number]').value = 2000")
    browser.click(".ats-run .ats-play")
    carry(live, "adam-cosine-tv on lenet (untrained)")
    browser.until("!document.querySelector('.ats-stop').disabled")
    browser.click(".ats-stop")
    step()
    carry(live, "Stopped after step")
    assert not browser.js("document.querySelector('.ats-run .ats-play').disabled")


def test_stop_can_be_pressed_while_a_network_is_trained_first(live):
    browser, _, _ = live
    buttons = "['.ats-run .ats-play', '.ats-stop'].map((s) => document.querySelector(s).disabled)"
    assert browser.js(buttons) == [False, True]
    say = "window.heard[0]({kind: %r, message: %r, busy: %s}, [])"
    browser.js(say % ("training", "It is trained again first", "true"))
    assert (status(browser), browser.js(buttons)) == ("It is trained again first", [True, False])
    browser.js(say % ("ended", "Stopped in the training", "false"))
    assert (status(browser), browser.js(buttons)) == ("Stopped in the training", [False, True])


@pytest.mark.parametrize("running", [False, True])
def test_a_view_that_goes_stops_its_attack_if_there_is_one(live, running):
    browser, _, _ = live
    if running:
        browser.js("window.heard[0]({kind: 'training', message: 'trained first', busy: true}, [])")
    browser.js("window.leave()")
    assert browser.js("window.sent") == ([[{"kind": "stop"}, []]] if running else [])


# --- the book -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not PAGE.exists(), reason="the book is not built, or has no explorer: make book")
@pytest.mark.parametrize("width", [360, 1280])
def test_the_books_page_asks_no_other_host_and_fits(browser, width):
    browser.size(width, 900, mobile=width < 500)
    browser.media(prefers_color_scheme="light")
    browser.open(PAGE.as_uri())
    assert browser.js("document.documentElement.scrollWidth") <= width
    before = seen(browser, "a", "found")
    browser.click(".ats-thumbs button:nth-child(2)")
    assert not torch.equal(seen(browser, "a", "found"), before)
    # On file:// the theme's own fonts are refused, which is none of the explorer's doing.
    assert [fault for fault in browser.faults() if "font" not in str(fault).lower()] == []
    assert os.path.getsize(PAGE) < 3_000_000
