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

from atsbook.networks import ModelRequest, dataset, network
from atsbook.runs.settings import settings
from atsbook.runs.study import Study
from atsbook.store import Store
from atsbook.widgets import browser as live
from atsbook.widgets import data, html
from atsbook.widgets.browser_graph.graph import rounded
from atsbook.widgets.figures import Figure
from atslib.attacks import ATTACKS
from atslib.attacks.line_up import line_up
from atslib.attacks.through_policy import forms
from atslib.attacks.undo_policy import Undone
from atslib.clients.observe import observe
from atslib.clients.prepare import to_images
from atslib.clients.training import TrainConfig
from atslib.measures.found import Matcher, match_each
from atslib.policies.differentiable import twins
from atslib.policies.operations import OPS
from atslib.policies.policy import Policy
from atslib.rng import rng

pytestmark = [needs_chromium, pytest.mark.usefixtures("one_thread")]
STATUS, START, STOP = ".ats-attack .ats-status", ".ats-run .ats-play", ".ats-stop"
VERDICT, OTHER, NEXT = ".ats-verdict", ".ats-other", ".ats-next"
USED, FOUND = ".ats-trio .ats-used canvas", ".ats-trio .ats-found canvas"


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
        network.request.make(Store(smoke_store), torch.device("cpu"))
        policies = {**live.TRIAL, "19-1-18": "A random policy"}
        small = live.trial(settings(profile="smoke"))
        whole = Figure(
            "attack",
            live.payload(study, network, policies=policies, images=4),
            small.still,
            "what the attack finds",
        )
    whole.payload["networks"][1]["graph"] = exported | {"mean": [0.9] * 3, "std": [0.01] * 3}
    for figure in (whole, small):
        figure.payload["presets"] = [dict(preset, steps=50) for preset in live.PRESETS]
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


def ended(page, words=r"\d+ steps in|Stopped"):
    page.until(f"/^({words})/.test(document.querySelector('{STATUS}').textContent)", seconds=60)
    return page.text(STATUS)


PICKED = r"✓ the server picked your photo, 1st of \d+|✗ the server picked another [a-z]+, yours is \d+(st|nd|rd|th) of \d+"


def test_an_attack_runs_to_the_end_and_says_whom_both_servers_picked(page):
    assert page.text(VERDICT) == "Which photo was it? Press Attack."
    page.tap(**page.centre(".ats-attack .ats-thumbs button:nth-of-type(3)"))
    chosen = "document.querySelector('.ats-attack .ats-thumbs [aria-checked=true]').ariaLabel"
    assert page.js(chosen).startswith("Image 3: ")
    page.tap(**page.centre(START))
    said = ended(page)
    assert re.fullmatch(PICKED, page.text(VERDICT))
    # who hears the page is told what others see
    assert re.fullmatch(rf"50 steps in [\d.]+ seconds on this device\. ({PICKED})\.", said)
    page.until(f"!document.querySelector('{OTHER}').textContent.includes('looking')", seconds=60)
    said = r"A server .* rebuilds nothing: ✓ picked your photo \([\d,]+ of [\d,]+ pictures tried\)"
    assert re.fullmatch(said, page.text(OTHER))
    assert page.text(".ats-controls .ats-results small").startswith("step 50 of 50, ")
    assert page.picture(FOUND).float().std() > 10
    cells = "[...document.querySelectorAll('section.ats-attack:not(.ats-trial) .ats-cells button')]"
    shares = page.js(
        f"{cells}.map((c) => +c.querySelector('.ats-bar').style.getPropertyValue('--ats-share'))"
    )
    assert 0 <= min(shares) < max(shares) <= 1
    assert (
        page.js(
            f"{cells}.filter((c) => c.querySelector('.ats-whose').textContent === 'yours').length"
        )
        == 1
    )
    first = page.js(f"{cells}.findIndex((c) => c.classList.contains('ats-first'))")
    assert shares[first] == max(shares)


def test_stop_is_heard_within_the_click_and_the_next_attack_runs(page):
    page.js("document.querySelector('.ats-attack input[type=range][min=\\'50\\']').value = 2000")
    page.click(START)
    step = ".ats-controls .ats-results small"
    page.until(
        f"/^step \\d+ of 2000/.test(document.querySelector('{step}').textContent)", seconds=60
    )
    # read in the same task of the browser as the click: nothing is waited for
    disabled = page.js(
        "(() => { document.querySelector('.ats-stop').click();"
        "return document.querySelector('.ats-run .ats-play').disabled; })()"
    )
    assert disabled is False
    still = page.text(step)
    page.js("new Promise((done) => setTimeout(() => done(1), 300))")
    assert page.text(step) == still
    page.js("document.querySelector('.ats-more').open = true")
    page.choose(".ats-more select", "1")
    trained = r"ReLU, trained for \d+ epochs? on [\d,]+ images .* with [\d.]+ % of"
    assert re.search(trained, page.text(".ats-what"))
    assert page.js("document.querySelector('.ats-what').ariaLive") == "polite"
    page.js("document.querySelector('.ats-attack input[type=range][min=\\'50\\']').value = 50")
    page.click(START)
    assert ended(page).startswith("50 steps")
    assert page.picture(FOUND).float().mean() > 200  # of that network's normalization


ROWS = "[...document.querySelectorAll('.ats-controls .ats-row')]"
WORDS = ".ats-controls .ats-operations"


def test_a_policy_is_named_or_composed_by_sliders_and_its_draw_is_seen_at_once(page):
    kinds = f"{ROWS}.map((row) => row.querySelector('select').value)"
    drawn = page.js(kinds)
    assert drawn in (
        ["translateX", "contrast", "translateY"],
        ["translateY", "contrast", "contrast"],
    )
    before = page.text(WORDS)
    used = page.picture(USED)
    page.click(".ats-controls .ats-draw button")
    assert page.text(WORDS) != before
    assert not torch.equal(page.picture(USED), used)
    page.choose(".ats-controls .ats-policy > select", "")
    assert page.text(WORDS) == "This time: no operation"
    assert page.js("document.querySelector('.ats-controls .ats-draw button').disabled")
    original = page.picture(".ats-photo canvas")
    assert torch.equal(page.picture(USED), original)
    page.choose(".ats-controls .ats-row select", "brightness")
    assert (
        page.js(
            "document.querySelector('.ats-controls .ats-policy > select').selectedOptions[0].text"
        )
        == "Your own"
    )
    levels = {}
    for place in range(4):
        slider = "document.querySelector('.ats-controls .ats-row input')"
        page.js(f"(s => {{ s.value = {place}; s.dispatchEvent(new Event('input')) }})({slider})")
        levels[page.text(".ats-controls .ats-row output")] = page.text(WORDS)
        sign = 1 if "+" in page.text(WORDS) else -1
        level = int(page.text(".ats-controls .ats-row output"))
        op = next(
            i for i, each in enumerate(OPS) if (each.name, each.level) == ("brightness", level)
        )
        assert torch.equal(
            page.picture(USED), Policy((op,)).apply_signs(original[None], torch.tensor([[sign]]))[0]
        )
    assert list(levels) == ["3", "5", "6", "9"]


def test_a_kept_draw_stays_when_the_photo_changes_and_when_it_is_attacked_again(page):
    page.click(".ats-controls .ats-draw input")
    words = page.text(WORDS)
    for image in (2, 3, 4):
        page.click(f".ats-attack .ats-thumbs button:nth-of-type({image})")
        assert page.text(WORDS) == words
    for _ in range(2):
        page.click(START)
        ended(page)
        assert page.text(WORDS) == words


def test_another_round_draws_anew_and_puts_both_together(page):
    assert page.js(f"document.querySelector('{NEXT}').disabled")
    page.click(START)
    ended(page)
    first, words = page.picture(".ats-controls .ats-undone canvas"), page.text(WORDS)
    assert page.text(".ats-controls .ats-undone figcaption") == "Policy undone, gaps guessed"
    page.click(NEXT)
    assert ended(page).startswith("50 steps")
    assert page.text(WORDS) != words
    assert page.text(".ats-controls .ats-undone figcaption") == "2 rounds put together"
    assert not torch.equal(page.picture(".ats-controls .ats-undone canvas"), first)
    assert re.fullmatch(PICKED, page.text(VERDICT))
    page.choose(".ats-controls .ats-policy > select", "")
    assert (
        page.text(VERDICT) == "Which photo was it? Press Attack."
    )  # of that policy nothing is known
    page.click(START)
    ended(page)
    assert page.js(f"document.querySelector('{NEXT}').disabled")  # it draws nothing


def test_the_reader_picks_before_the_server_is_heard(page):
    page.click(".ats-guess")
    page.until(
        f"document.querySelector('{VERDICT}').textContent === 'Which photo is it? Pick it below.'"
    )
    assert page.picture(".ats-photo canvas").float().std() == 0  # nothing is given away
    assert page.picture(USED).float().std() == 0
    assert ended(page, "The server has").endswith("Which photo is it? Pick one below.")
    assert page.text(OTHER) == ""
    assert page.text(WORDS) == ""
    bars = "[...document.querySelectorAll('section.ats-attack:not(.ats-trial) .ats-bar.ats-a')]"
    shares = f"{bars}.map((b) => b.style.getPropertyValue('--ats-share'))"
    assert set(page.js(shares)) == {"0.000"}
    page.click(".ats-attack .ats-cells button:nth-of-type(2)")
    said = r"You: [✓✗] (right|wrong), of \d+\. The server: [✓✗] (right|wrong), of \d+\. "
    said += r"Together: you [01] of 1, the server [01] of 1\."
    assert re.fullmatch(said, page.text(STATUS))
    assert page.picture(".ats-photo canvas").float().std() > 0
    whose = "[...document.querySelectorAll('section.ats-attack:not(.ats-trial) .ats-whose')].map((w) => w.textContent)"
    right = "✓ right, of" in page.text(STATUS).split(" The server")[0]
    marked = [each for each in page.js(whose) if each]
    assert sorted(marked) == (["the photo, you"] if right else ["the photo", "you"])
    assert page.js(
        "[...document.querySelectorAll('section.ats-attack:not(.ats-trial) .ats-cells button')].every((c) => c.disabled)"
    )


def test_a_second_policy_is_attacked_beside_the_first(page):
    assert page.style(".ats-second", "display") == ["none"]
    page.click(".ats-compare input")
    page.choose(".ats-second .ats-policy > select", "3-1-7")
    page.choose(".ats-controls .ats-policy > select", "19-1-18")
    page.click(START)
    assert re.search(r"A: [✓✗] the server .* B: [✓✗] the server ", ended(page))
    for slot in "ab":
        said = page.text(f".ats-lane-{slot} .ats-verdict")
        assert said.startswith(f"{slot.upper()}: ")
        assert re.fullmatch(PICKED, said[3:])
    form = "section.ats-attack:not(.ats-trial)"
    bars = f"[...document.querySelectorAll('{form} .ats-bar')].filter((b) => b.checkVisibility()).length"
    cells = f"document.querySelectorAll('{form} .ats-cells button').length"
    assert page.js(bars) == 2 * page.js(cells)
    assert page.picture(".ats-second .ats-found canvas").float().std() > 10


def test_the_small_form_attacks_with_one_of_three_policies(page):
    seen = (
        "[...document.querySelectorAll('.ats-trial :is(select, input, button):not(.ats-cells *)')]"
    )
    seen = f"{seen}.filter((e) => e.checkVisibility())"
    assert page.js(f"{seen}.map((e) => e.tagName)") == ["BUTTON", "BUTTON", "SELECT"]
    assert page.js(f"{seen}[2].options.length") == 3
    page.choose(".ats-trial select", "3-1-7")
    at = page.centre(".ats-trial .ats-play")
    page.tap(**at)
    page.until(
        "/^50 steps/.test(document.querySelector('.ats-trial .ats-status').textContent)", seconds=60
    )
    assert page.picture(".ats-trial .ats-found canvas").float().std() > 10
    assert re.fullmatch(PICKED, page.text(".ats-trial .ats-verdict"))
    page.choose(".ats-trial select", "")
    assert page.text(".ats-trial .ats-status") == ""  # nothing has been attacked with this policy


def test_keys_lead_through_the_form_in_order_and_start_and_stop(page):
    page.media(prefers_color_scheme="light", prefers_reduced_motion="reduce")
    page.js("document.querySelector('.ats-attack .ats-thumbs [tabindex=\"0\"]').focus()")
    page.key("ArrowRight")
    assert page.js("document.activeElement.getAttribute('aria-label')").startswith("Image 2: ")
    page.js("document.querySelector('.ats-attack .ats-play').focus()")
    order = []
    for _ in range(6):
        page.key("Tab")
        order.append(page.js("document.activeElement.className || document.activeElement.type"))
    assert order == ["ats-guess", "button", "file", "select-one", "button", "checkbox"]
    page.js("document.querySelector('.ats-attack .ats-play').focus()")
    page.js(EVERY)
    page.key(" ")
    page.until("document.activeElement.className === 'ats-stop'")
    page.until("window.every.length === 1")
    assert page.js("window.every") == [700]  # ms between frames
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
  document.querySelector(".ats-photo").dispatchEvent(event);
})(%s)"""


@pytest.mark.parametrize("name", GIVEN)
def test_a_file_of_any_kind_is_taken_or_refused_in_a_sentence(page, name):
    content, said = GIVEN[name]
    page.js(GIVE % json.dumps([name, base64.b64encode(content).decode()]))
    page.until(f"document.querySelector('{STATUS}').textContent", seconds=30)
    marked = page.js(
        "document.querySelector('.ats-attack .ats-thumbs [aria-checked=true]').ariaLabel"
    )
    if "stays in this page" not in said:
        assert page.text(STATUS) == said
        assert marked.startswith("Image 1: ")
        return
    assert page.text(STATUS).startswith(f"{said} It is sent as a")
    assert marked == "Image 5: your own image"
    if name == "clear.png":
        assert page.picture(".ats-photo canvas").min() == 255
        page.click(".ats-attack .ats-thumbs button:nth-of-type(2)")
        assert page.picture(".ats-photo canvas").float().std() > 0
        page.click(".ats-attack .ats-thumbs button:nth-of-type(5)")
        assert page.picture(".ats-photo canvas").min() == 255


def test_a_desk_shows_button_pictures_and_line_up_at_once(page):
    page.size(1400, 900)
    page.js("scrollTo(0, 0)")
    for part in (START, ".ats-photo", ".ats-trio .ats-found", VERDICT, ".ats-cells"):
        assert page.js(f"document.querySelector('{part}').getBoundingClientRect().bottom") <= 720, (
            part
        )


def test_a_phone_shows_all_of_it_in_the_dark_and_everything_has_a_name(page):
    assert min(page.phone(390)) >= 38
    row = "section.ats-attack:not(.ats-trial) > .ats-trio:not(.ats-second) canvas"
    rows = page.js(
        f"[...document.querySelectorAll('{row}')].map((c) => c.getBoundingClientRect().top)"
    )
    assert len(rows) == 3
    assert len(set(rows)) == 1  # side by side
    page.media(prefers_color_scheme="dark")
    found = page.contrast(".ats-explorer *")
    assert len(found) > 20
    assert found[0][0] >= 4.5, found[0]
    assert set(page.style(".ats-explorer canvas", "filter")) == {"none"}  # pictures are not dimmed
    status = page.js(f"document.querySelector('{STATUS}').getAttribute('role')")
    assert status == "status"  # results are said aloud
    page.js("document.querySelector('.ats-more').open = true")
    controls = {"radio", "combobox", "slider", "button", "checkbox"}
    named = page.named(*controls, "image", "img")
    assert {role for role, _ in named} >= controls
    assert [role for role, name in named if not name] == []


# --- what the servers compute ---------------------------------------------------------------------------------

SERVER = """
const [cases, own] = %s, size = [3, 32, 32], search = {...SEARCH, steps: 4};
const bytes = own.map((each) => Uint8Array.from(each));
window.found = cases.map(({forms, picture, place, slope}) => {
  const x = Float64Array.from(picture), server = undoing(forms, bytes, size, 0.2, search);
  const surer = undoing(forms, bytes, size, 0.2 / Math.SQRT2, search); // as two rounds that say the same
  let out = x;
  const backs = forms[place].map(([{name, magnitude}, sign]) => {
    const [next, back] = TWINS[name](out, size, magnitude, sign);
    out = next;
    return back;
  });
  const back = backs.reduceRight((now, each) => each(now), Float64Array.from(slope));
  const alike = matching(bytes, forms, size);
  while (!alike.more());
  const round = {picture: x, form: place}, once = server.undone([round]);
  const twice = [server.undone([round, round]), surer.undone([round])].map((each) => [...each]);
  return [server.likeliest(x), [...once], [...out], [...back], [...alike.scores(x)], ...twice];
});
"""
NAMES = {op.name: str(i) for i, op in enumerate(OPS)}  # the last of each kind


def test_likeness_form_and_undone_picture_are_the_librarys(browser, tmp_path):
    draws, operations = rng(0), data.operations()
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
        (alike,) = match_each(
            x.float(),
            own,
            torch.arange(len(own))[None],
            policy,
            crop_flip=False,
            matchers=[Matcher(scale="plain")],
        )
        expected.append([likely, undone, out, back, alike.double()])
        pairs = [[[operations[i], s] for i, s in zip(*form, strict=True)] for form in possible]
        given = {
            "picture": x.flatten().tolist(),
            "slope": slope.flatten().tolist(),
            "place": len(possible) - 1,
        }
        cases.append({"forms": pairs} | given)
    given = json.dumps([cases, own.flatten(1).tolist()])
    text = (
        "const postMessage = 0;"
        + html.source("operations.js", "undo.js", "worker.js")
        + SERVER % given
    )
    browser.open(
        written(tmp_path / "server.html", f"<script type='module'>{text}</script>"),
        ready="window.found",
    )
    found = browser.js("window.found")
    for (likely, *values, twice, surer), (form, *numbers), policy in zip(
        found, expected, [*NAMES, "hybrid"], strict=True
    ):
        assert likely == form, policy
        if policy == "hybrid":  # others have steps, on which the last digit decides
            assert twice == pytest.approx(surer, abs=1e-6)
        for place, (value, number) in enumerate(zip(values, numbers, strict=True)):
            if (policy, place) == ("equalize", 0):
                continue  # at means of few images its slopes hang on the last digit
            off = (torch.tensor(value, dtype=torch.float64) - number.flatten()).abs()
            assert off.max() <= 1e-4 * max(1, number.abs().max()), (policy, place)


COMPARED = """
let said = null;
const postMessage = (message) => { said = message; };
%s
const {graph, features, target, label, candidates, forms} = %s;
prepare({graph, features, compares: true});
const known = candidates.map((each) => Uint8Array.from(each));
const given = {id: 1, target: Float64Array.from(target), label, candidates: known, forms};
const heard = (all) => new Promise((done) => {
  said = null;
  compare({...given, all});
  const plain = () => ({...said, away: [...said.away].map((v) => (Number.isFinite(v) ? v : -1))});
  const wait = () => (said ? done(plain()) : setTimeout(wait, 5));
  wait();
});
window.found = [await heard(true), await heard(false)];
"""


@pytest.mark.parametrize("policy", ["", "3-1-7+43-18-18"])
def test_the_server_that_compares_gradients_has_the_librarys_distances(
    browser, tmp_path, exported, policy
):
    request = ModelRequest(dataset="shapes", model="lenet", fraction=1.0, train=None, seed=0)
    model, operations = rounded(network(request), "f16"), data.operations()
    own, place = dataset("shapes", "train").pixels[:6], 4
    possible = forms(policy)
    ids, signs = possible[-1]
    used = Policy(ids).apply_signs(
        own[place][None], torch.tensor([signs], dtype=torch.int64).view(1, len(ids))
    )
    seen = observe(model, to_images(used), torch.tensor([2]))
    known = line_up(seen, own, torch.arange(len(own))[None], policy, crop_flip=False, complete=True)
    pairs = [[[operations[i], s] for i, s in zip(*form, strict=True)] for form in possible]
    given = {
        "graph": exported, "features": 768, "label": 2, "forms": pairs,
        "target": (used / 255).flatten().tolist(), "candidates": own.flatten(1).tolist(),
    }  # fmt: skip
    script = html.source("runner.js", "operations.js", "undo.js", "worker.js")
    text = COMPARED % (script, json.dumps(given))
    file = written(tmp_path / "compared.html", f"<script type='module'>{text}</script>")
    browser.open(file, ready="window.found")
    every, first = browser.js("window.found")
    assert every["away"] == pytest.approx(known.distances[0].tolist(), rel=1e-3, abs=1e-4)
    assert (every["tried"], every["total"]) == (6 * len(possible),) * 2
    assert first["away"].index(min(each for each in first["away"] if each >= 0)) == place
    assert first["tried"] <= every["tried"]
