"""The attack in the page without a browser: what its payload holds, image sheets, and words."""

import base64
import json

import pytest
import torch
from checks import assert_asks_for_nothing, pictures, pictures_of

from atsbook.figures.sheets import payload as with_files
from atsbook.figures.sheets import sheet, signed
from atsbook.networks import dataset
from atsbook.runs.settings import settings
from atsbook.widgets import browser
from atslib.measures.metrics import psnr
from atslib.policies.differentiable import SIGNED
from atslib.policies.policy import OPS, Policy
from atslib.rng import rng

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("channels", [1, 3])
def test_a_sheet_keeps_place_and_colour_of_every_picture(channels):
    made = torch.rand(
        3, 4, channels, 16, 16, generator=rng(0)
    )  # noise, as in an attack's first frames
    file = with_files({}, {"x": sheet(made, 75)})["files"]["x"]
    payload = {"size": [channels, 16, 16], "files": {"a.webp": file}}
    shown = pictures(payload, "a.webp").float() / 255
    assert shown.shape == made.shape
    assert psnr(shown.flatten(0, 1), made.flatten(0, 1)).min() > 30


def test_signs_are_in_the_words():
    assert signed((3, 1, 7), (-1, 1, 1)) == "translate X −9 → contrast +6 → translate Y +2"
    assert signed((0, 11), (-1, 1)) == "invert 7 → posterize 5"
    assert signed((), ()) == "no operation"


def test_operations_with_a_sign_are_those_that_change_with_it():
    pixels = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8, generator=rng(0))
    for index, op in enumerate(OPS):
        results = [Policy((index,)).apply_signs(pixels, torch.tensor([[sign]])) for sign in (1, -1)]
        if op.level > 0:
            assert (op.name in SIGNED) == (not torch.equal(*results)), op


def test_each_photo_stands_among_others_of_its_class_which_are_small():
    test, budget = dataset("shapes", "test"), 120_000
    made = browser.line_ups("shapes", range(6), budget)
    assert [kind["label"] for kind in made["classes"]] == list(
        dict.fromkeys(test.labels[:6].tolist())
    )
    for image, (kind, place) in enumerate(made["of"]):
        known = made["classes"][kind]
        assert known["label"] == int(test.labels[image])
        assert known["name"] == test.class_names[known["label"]]
        shown = pictures_of(known["sheet"], test.pixels.shape[1:])
        assert shown.shape[:2] == (1, known["count"])
        assert 2 <= known["count"] <= min(100, int((test.labels == known["label"]).sum()))
        if place == known["count"] - 1:
            continue  # one that comes late in its class takes the last place, where the page puts it
        off = (shown[0].float() - test.pixels[image].float()).abs().flatten(1).mean(1)
        assert int(off.argmin()) == place
    whole = sum(len(base64.b64decode(kind["sheet"].split(",")[1])) for kind in made["classes"])
    assert whole <= budget


def test_the_small_form_is_whole_and_asks_for_nothing(monkeypatch, exported):
    monkeypatch.setattr(browser, "attack_graph", lambda *_, **__: exported)
    figure = browser.trial(settings(profile="smoke"))
    assert_asks_for_nothing(figure._repr_html_())
    assert figure.payload["start"] in figure.payload["policies"]
    assert figure.payload["presets"][0]["steps"] == 300  # annealed
    assert (
        figure.payload["networks"][0]["features"]
        * figure.payload["networks"][0]["graph"]["classes"]
        > 0
    )
    json.dumps(figure.payload, allow_nan=False)
