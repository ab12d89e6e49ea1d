"""The attack in the reader's browser: what it shows, that it stops, files of all kinds, phone,
dark, keyboard.
"""

import base64
import io
import json
import re

import pytest
import torch
from browser import needs_chromium, written
from PIL import Image

from atsbook.networks import dataset
from atsbook.runs.settings import settings
from atsbook.runs.study import Study
from atsbook.store import Store
from atsbook.widgets import browser as live
from atsbook.widgets import data, html
from atsbook.widgets.figures import Figure
from atslib.attacks import ATTACKS
from atslib.attacks.through_policy import forms
from atslib.attacks.undo_policy import Undone
from atslib.clients.prepare import to_images
from atslib.clients.training import TrainConfig
from atslib.measures.identification import similarity
from atslib.policies.differentiable import twins
from atslib.policies.operations import OPS
from atslib.policies.policy import Policy
from atslib.rng import rng

pytestmark = [needs_chromium, pytest.mark.usefixtures("one_thread")]
STATUS, START, STOP = ".ats-attack .ats-status", ".ats-run .ats-play", ".ats-stop"


@pytest.fixture(scope="module")
def figures(exported, smoke_store):
    """The attack on four drawn images and its small form, which end after a few steps.

    The second network is the first with another normalization, so that its pictures are bright: to
    trace takes seconds.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            live, "attack_graph", lambda *_, **__: exported
        )  # of the same network, traced before
        patch.setattr(live, "OWN", 24)
        study = Study("smoke", store=smoke_store)
        network = study.network("relunet", train=TrainConfig(epochs=1, batch=32), fraction=0.04)
        network.unit.make(Store(smoke_store), torch.device("cpu"))
        policies = {"": "No policy", **live.TRIAL}
        small = live.trial(settings(profile="smoke"))
        whole = Figure(
            "attack",
            live.payload(study, network, policies=policies, images=4),
            small.still,
            "what the attack finds",
        )
    whole.payload["networks"][1]["graph"] = exported | {"mean": [0.9] * 3, "std": [0.01] * 3}
    for figure in (whole, small):
        figure.payload["presets"] = [dict(preset, steps=50) for preset in figure.payload["presets"]]
    return whole, small


@pytest.fixture(scope="module")
def address(figures, tmp_path_factory):
    """Both on one page, whose script draws both."""
    folder = tmp_path_factory.mktemp("page") / "sub path"
    folder.mkdir()
    whole, small = (figure._repr_html_() for figure in figures)
    return written(
        folder / "attack.html",
        whole + re.sub(r'<script type="module">.*?</script>', "", small, flags=re.S),
    )


@pytest.fixture
def page(browser, address):
    """The page from file://, without a network; afterwards it must have no fault."""
    browser.size(1100, 900)
    browser.media(prefers_color_scheme="light")
    browser.open(address, ready="document.querySelectorAll('.ats-on .ats-play').length === 2")
    yield browser
    assert browser.faults() == []


def ended(page, status=STATUS):
    page.until(
        f"/^(Finished|Stopped)/.test(document.querySelector('{status}').textContent)", seconds=60
    )
    return page.text(status)


def test_both_attacks_run_to_the_end_and_say_what_they_found(page):
    assert "untrained LeNet" in page.text(".ats-what")
    page.tap(**page.centre(".ats-attack .ats-thumbs button:nth-of-type(3)"))
    assert page.js(
        "document.querySelector('.ats-attack .ats-thumbs [aria-checked=true]').ariaLabel"
    ).startswith("Image 3: ")
    page.tap(**page.centre(START))
    assert re.fullmatch(
        r"Finished: 50 steps in [\d.]+ seconds on this device\. .* dB, with it .* dB\.", ended(page)
    )
    for slot in "ab":
        said = page.text(f".ats-slot-{slot} .ats-readout")
        assert re.fullmatch(
            r"-?[\d.]+ dBgain [+−][\d.]+ dB over the policy's mean image, step 50 of 50", said
        )
        assert "the server would guess: " in page.text(
            f".ats-slot-{slot} .ats-operations:last-child"
        )
        assert page.picture(f".ats-slot-{slot} .ats-found canvas").float().std() > 10
    assert page.js("document.querySelectorAll('.ats-attack .ats-line').length") == 2


def test_stop_is_heard_within_the_click_and_the_next_attack_runs(page):
    page.js("document.querySelector('.ats-attack input[type=range][min=\\'50\\']').value = 2000")
    page.click(START)
    page.until(
        "/step \\d+ of 2000/.test(document.querySelector('.ats-slot-a .ats-readout').textContent)",
        seconds=60,
    )
    # read in the same task of the browser as the click: nothing is waited for
    disabled = page.js(
        "(() => { document.querySelector('.ats-stop').click();"
        "return document.querySelector('.ats-run .ats-play').disabled; })()"
    )
    assert disabled is False
    still = page.text(".ats-slot-a .ats-readout")
    page.js("new Promise((done) => setTimeout(() => done(1), 300))")
    assert page.text(".ats-slot-a .ats-readout") == still
    page.js("document.querySelector('.ats-attack input[type=range][min=\\'50\\']').value = 50")
    page.choose(".ats-attack .ats-own select", "1")
    assert re.search(
        r"ReLU, trained for \d+ epochs? on [\d,]+ images .* with [\d.]+ % of",
        page.text(".ats-what"),
    )
    assert page.js("document.querySelector('.ats-what').ariaLive") == "polite"
    page.click(START)
    assert ended(page).startswith("Finished: 50 steps")
    assert (
        page.picture(".ats-slot-a .ats-found canvas").float().mean() > 200
    )  # of that network's normalization


def test_who_knows_the_policy_undoes_it(page):
    selects = "[...document.querySelector('.ats-attack').querySelectorAll('.ats-own select')]"
    named = ["Untrained: the first round", "Hybrid of both: 3-1-7+43-18-18", *["by its member"] * 3]
    assert page.js(f"{selects}.map((s) => s.selectedOptions[0].text)") == named
    assert (
        page.text(".ats-own > .ats-note")
        == "For each image one of its members is drawn: 3-1-7 or 43-18-18."
    )
    page.choose(".ats-own label:nth-of-type(3) select", "45")
    assert page.js(f"{selects}.map((s) => s.value)") == ["0", "", "45", "", ""]
    page.click(".ats-attack .ats-attacks label:nth-child(2) input")
    page.click(START)
    assert ended(page).startswith("Finished: 50 steps")
    said = page.text(".ats-slot-b .ats-operations:last-child")
    start = r"The server takes the policy to have drawn solarize .*, which is right\. Undone, its picture has [\d.]+ dB of "
    assert re.match(start + r"the original\. Of the 4 pictures the server would guess: ", said)
    assert page.picture(".ats-slot-b .ats-pictures figure:nth-child(3) canvas").float().std() > 5
    unused = ".ats-slot-a .ats-pictures figure:nth-child(3)"
    assert page.style(unused, "display") == ["none", "none"]  # nor in the small form


def test_the_small_form_attacks_with_one_of_three_policies(page):
    form = ".ats-trial .ats-own"
    assert page.js(f"document.querySelectorAll('{form} select:first-of-type option').length") >= 3
    seen = f"[...document.querySelectorAll('{form} :is(select, input, button)')].filter((e) => e.checkVisibility())"
    assert page.js(f"{seen}.map((e) => e.tagName)") == ["SELECT", "BUTTON", "BUTTON"]
    assert page.js(f"{seen}[0].options.length") == 3
    page.choose(f"{form} select", "19-1-18")
    at = page.centre(".ats-trial .ats-play")
    page.tap(**at)
    assert ended(page, ".ats-trial .ats-status").startswith("Finished: 50 steps")
    for slot in "ab":
        assert page.picture(f".ats-trial .ats-slot-{slot} .ats-found canvas").float().std() > 10
    page.choose(f"{form} select", "3-1-7")
    assert page.text(".ats-trial .ats-status") == ""  # nothing has been attacked with this policy


def test_keys_lead_through_the_form_in_order_and_start_and_stop(page):
    page.media(prefers_color_scheme="light", prefers_reduced_motion="reduce")
    page.js("document.querySelector('.ats-attack .ats-thumbs [tabindex=\"0\"]').focus()")
    page.key("ArrowRight")
    assert page.js("document.activeElement.getAttribute('aria-label')").startswith("Image 2: ")
    order = []
    for _ in range(10):
        page.key("Tab")
        order.append(page.js("document.activeElement.type || document.activeElement.tagName"))
    assert order == ["radio", *["select-one"] * 5, "range", "range", "file", "button"]
    page.js(EVERY)
    page.key(" ")
    page.until("document.activeElement.className === 'ats-stop'")
    assert page.js("window.every") == [700, 700]  # ms between frames
    page.key(" ")
    assert ended(page).startswith("Stopped after step ")
    assert page.js("document.activeElement.className") == "ats-play"


EVERY = """(() => {
  const post = Worker.prototype.postMessage;
  window.every = [];
  Worker.prototype.postMessage = function (message, ...more) {
    if (message.run) window.every.push(message.run.every);
    return post.call(this, message, ...more);
  };
})()"""


def image(kind, size, mode="RGB", **how):
    buffer = io.BytesIO()
    Image.new(mode, size, (200, 30, 30, 0)[: len(mode)]).save(buffer, kind, **how)
    return buffer.getvalue()


GIVEN = {
    "note.txt": (
        b"not an image",
        "note.txt is no image that this browser can read; take a PNG, JPEG, WebP or GIF.",
    ),
    "large.png": (bytes(10_000_001), "large.png has 10.0 MB; at most 10 MB are taken."),
    "wide.png": (
        image("PNG", (10_001, 5_000)),
        "wide.png has 10001 × 5000 pixels; at most 50 million are taken.",
    ),
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
    assert (
        page.js(f"document.querySelector('{STATUS}').getAttribute('role')") == "status"
    )  # results are said aloud
    controls = {"radio", "combobox", "slider", "button"}
    named = page.named(*controls, "image", "img")
    assert {role for role, _ in named} >= controls
    assert [role for role, name in named if not name] == []


SERVER = """
const [[a, b, c], cases, own] = %s, size = [3, 32, 32], search = {...SEARCH, steps: 4};
const bytes = own.map((each) => Uint8Array.from(each));
const alike = [similarity(a, b, size), similarity(a, c, size)];
window.found = [...alike, ...cases.map(({forms, picture, place, slope}) => {
  const x = Float64Array.from(picture), server = undoing(forms, bytes, size, 0.2, search);
  let out = x;
  const backs = forms[place].map(([{name, magnitude}, sign]) => {
    const [next, back] = TWINS[name](out, size, magnitude, sign);
    out = next;
    return back;
  });
  const back = backs.reduceRight((now, each) => each(now), Float64Array.from(slope));
  return [server.likeliest(x), [...server.undone(x, place)], [...out], [...back]];
})];
"""
NAMES = {op.name: str(i) for i, op in enumerate(OPS)}  # the last of each kind


def test_guess_form_and_undone_picture_are_the_librarys(browser, tmp_path):
    draws, operations = rng(0), data.operations()
    pictures = torch.rand(3, 3, 32, 32, generator=draws)
    pictures[1] = pictures[0].roll(3, -1).flip(-1)
    own = dataset("shapes", "train").pixels[:15].clone()
    rows, columns = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    own[-1] = (own[-1] & 254) | (
        (own[:-1].long().sum(0) + rows + columns) & 1
    ).byte()  # so that no neighbours tie
    server = Undone(inner=ATTACKS["annealed-lenet"], images=dataset("shapes", "train"), steps=4)
    cases, expected = [], []
    for policy in (*NAMES.values(), "3-1-7+43-18-18"):
        possible = forms(policy)
        ids, signs = possible[-1]
        image = dataset("shapes", "test").pixels[:1]
        x = to_images(Policy(ids).apply_signs(image, torch.tensor([signs]))).double()
        x = (x + 0.05 * torch.randn(x.shape, generator=draws)).clamp(0.01, 0.99).requires_grad_()
        slope = torch.rand(x.shape, generator=draws, dtype=torch.float64)
        out = twins([possible[-1]], x)
        (back,) = torch.autograd.grad((out * slope).sum(), x)
        x = x.detach()
        likely = possible.index(server.likeliest(x, own, policy)[0])
        undone = server.undo(x, [possible[-1]], own.double() / 255)
        expected.append([likely, undone, out, back])
        pairs = [[[operations[i], s] for i, s in zip(*form, strict=True)] for form in possible]
        given = {
            "picture": x.flatten().tolist(),
            "slope": slope.flatten().tolist(),
            "place": len(possible) - 1,
        }
        cases.append({"forms": pairs} | given)
    given = json.dumps([[p.flatten().tolist() for p in pictures], cases, own.flatten(1).tolist()])
    text = (
        "const postMessage = 0;"
        + html.source("operations.js", "undo.js", "worker.js")
        + SERVER % given
    )
    browser.open(
        written(tmp_path / "server.html", f"<script type='module'>{text}</script>"),
        ready="window.found",
    )
    *alike, found = browser.js("[...window.found.slice(0, 2), window.found.slice(2)]")
    assert alike == pytest.approx(similarity(pictures[:1], pictures[1:])[0].tolist(), abs=1e-4)
    for (likely, *values), (form, *numbers), policy in zip(
        found, expected, [*NAMES, "hybrid"], strict=True
    ):
        assert likely == form, policy
        for place, (value, number) in enumerate(zip(values, numbers, strict=True)):
            if (policy, place) == ("equalize", 0):
                continue  # at means of few images its slopes hang on the last digit
            off = (torch.tensor(value, dtype=torch.float64) - number.flatten()).abs()
            assert off.max() <= 1e-4 * max(1, number.abs().max()), (policy, place)
