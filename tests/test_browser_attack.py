"""The attack in the reader's browser: what it shows, that it stops, files of all kinds, phone, dark, keyboard."""

import base64
import io
import json
import re

import pytest
import torch
from browser import needs_chromium, written
from PIL import Image

from atslib.measures.identification import similarity
from atslib.report.units.settings import settings
from atslib.report.widgets import browser as live
from atslib.report.widgets import html
from atslib.report.widgets.figures import Figure
from atslib.rng import rng

pytestmark = [needs_chromium, pytest.mark.usefixtures("one_thread")]
STATUS, START, STOP = ".ats-attack .ats-status", ".ats-run .ats-play", ".ats-stop"


@pytest.fixture(scope="module")
def figure():
    """The figure on four drawn images, which ends after a few steps."""
    payload = live.payload(settings(profile="smoke"), images=4)
    for preset in payload["presets"]:
        preset["steps"] = 50
    still = io.BytesIO()
    Image.new("RGB", (4, 4)).save(still, "PNG")
    return Figure("attack", payload, still.getvalue(), "what the attack finds")


@pytest.fixture(scope="module")
def address(figure, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page") / "sub path"
    folder.mkdir()
    return written(folder / "attack.html", figure._repr_html_())


@pytest.fixture
def page(browser, address):
    """The page from file://, without a network; afterwards it must have no fault."""
    browser.size(1100, 900)
    browser.media(prefers_color_scheme="light")
    browser.open(address, ready="document.querySelector('.ats-attack .ats-play')")
    yield browser
    assert browser.faults() == []


def ended(page):
    page.until(f"/^(Finished|Stopped)/.test(document.querySelector('{STATUS}').textContent)", seconds=60)
    return page.text(STATUS)


def test_both_attacks_run_to_the_end_and_say_what_they_found(page):
    assert "untrained LeNet" in page.text(".ats-what")
    page.click(START)
    assert re.fullmatch(r"Finished: 50 steps in [\d.]+ seconds on this device\. .* dB, with it .* dB\.", ended(page))
    for slot in "ab":
        said = page.text(f".ats-slot-{slot} .ats-readout")
        assert re.fullmatch(r"-?[\d.]+ dBgain [+−][\d.]+ dB over the policy's mean image, step 50 of 50", said)
        assert "the server would guess: " in page.text(f".ats-slot-{slot} .ats-operations:last-child")
        assert page.picture(f".ats-slot-{slot} .ats-found canvas").float().std() > 10
    assert page.js("document.querySelectorAll('.ats-attack .ats-line').length") == 2


def test_stop_is_heard_at_once_and_the_next_attack_runs(page):
    page.js("document.querySelector('.ats-attack input[type=range][min=\\'50\\']').value = 2000")
    page.click(START)
    page.until("/step \\d+ of 2000/.test(document.querySelector('.ats-slot-a .ats-readout').textContent)", seconds=60)
    waited = page.js(
        "(() => { const t = performance.now(); document.querySelector('.ats-stop').click();"
        "return [performance.now() - t, document.querySelector('.ats-run .ats-play').disabled]; })()"
    )
    assert waited[0] < 16
    assert waited[1] is False
    still = page.text(".ats-slot-a .ats-readout")
    page.js("new Promise((done) => setTimeout(() => done(1), 300))")
    assert page.text(".ats-slot-a .ats-readout") == still
    page.click(".ats-attack .ats-attacks label:nth-child(2) input")
    page.click(START)
    assert ended(page).startswith("Finished: 50 steps")


def image(kind, size, mode="RGB", **how):
    buffer = io.BytesIO()
    Image.new(mode, size, (200, 30, 30, 0)[: len(mode)]).save(buffer, kind, **how)
    return buffer.getvalue()


GIVEN = {
    "note.txt": (b"not an image", "note.txt is no image that this browser can read; take a PNG, JPEG, WebP or GIF."),
    "large.png": (bytes(10_000_001), "large.png has 10.0 MB; at most 10 MB are taken."),
    "wide.png": (image("PNG", (10_001, 5_000)), "wide.png has 10001 × 5000 pixels; at most 50 million are taken."),
    "dot.png": (image("PNG", (1, 1)), "dot.png stays in this page; its 1 × 1 pixels are enlarged."),
    "clear.png": (
        image("PNG", (64, 40), "RGBA"),
        "clear.png stays in this page; what is transparent is taken as white.",
    ),
    "two.gif": (
        image("GIF", (40, 40), save_all=True, append_images=[Image.new("RGB", (40, 40))]),
        "two.gif stays in this page; of an animation the first picture is taken.",
    ),
}
GIVE = """(([name, text]) => {
  const type = {png: "image/png", gif: "image/gif", txt: "text/plain"}[name.split(".").pop()];
  const all = new DataTransfer();
  all.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], name, {type}));
  const event = new DragEvent("drop", {dataTransfer: all, bubbles: true, cancelable: true});
  document.querySelector(".ats-own").dispatchEvent(event);
})(%s)"""


@pytest.mark.parametrize("name", GIVEN)
def test_a_file_of_any_kind_is_taken_or_refused_in_a_sentence(page, name):
    content, said = GIVEN[name]
    page.js(GIVE % json.dumps([name, base64.b64encode(content).decode()]))
    page.until(f"document.querySelector('{STATUS}').textContent", seconds=30)
    assert page.text(STATUS) == said
    if name == "clear.png":
        assert page.picture(".ats-slot-a .ats-pictures figure:first-child canvas").min() == 255


def test_a_phone_shows_all_of_it_in_the_dark_and_everything_has_a_name(page):
    assert min(page.phone(390)) >= 38
    page.media(prefers_color_scheme="dark")
    found = page.contrast(".ats-explorer *")
    assert len(found) > 20
    assert found[0][0] >= 4.5, found[0]
    controls = {"radio", "combobox", "slider", "button"}
    named = page.named(*controls, "image", "img")
    assert {role for role, _ in named} >= controls
    assert [role for role, name in named if not name] == []


def test_the_guess_is_the_librarys_similarity(browser, tmp_path):
    pictures = torch.rand(3, 3, 32, 32, generator=rng(0))
    pictures[1] = pictures[0].roll(3, -1).flip(-1)
    text = "const postMessage = 0;" + html.source("worker.js") + "window.found = "
    given = [picture.flatten().tolist() for picture in pictures]
    text += f"(([a, b, c]) => [similarity(a, b, [3, 32, 32]), similarity(a, c, [3, 32, 32])])({json.dumps(given)});"
    browser.open(written(tmp_path / "guess.html", f"<script type='module'>{text}</script>"), ready="window.found")
    assert browser.js("window.found") == pytest.approx(similarity(pictures[:1], pictures[1:])[0].tolist(), abs=1e-4)
