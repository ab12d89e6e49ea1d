"""The explorer without a browser: what is packed, the HTML of a page, and attacks of the reader's
own.
"""

import dataclasses
import io
import json
import re
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from checks import assert_asks_for_nothing, attack_unit, refused, written
from explored import album, explored
from PIL import Image

from atsbook.figures.sheets import payload as with_files
from atsbook.figures.sheets import sheet, signed
from atsbook.networks import dataset
from atsbook.runs.settings import model_unit, settings
from atsbook.runs.table1 import HYBRID
from atsbook.store import Store
from atsbook.widgets import Page, frames, show, to_html
from atsbook.widgets.explorer import pictures, still
from atsbook.widgets.frames import CLIENTS, SHEETS, frame_rows, read, words_drawn
from atsbook.widgets.live import (
    STEPS,
    UPLOAD_BYTES,
    Session,
    networks,
    pick,
    policy_image,
    read_upload,
)
from atslib.clients.observe import observe
from atslib.clients.training import TrainConfig
from atslib.measures.metrics import psnr
from atslib.policies.differentiable import SIGNED
from atslib.policies.operations import crop_and_flip
from atslib.policies.policy import OPS, Policy
from atslib.rng import rng

pytestmark = pytest.mark.usefixtures("one_thread")


SCENES = ("adam-cosine-tv", "through-policy", "adam-cosine")


@pytest.fixture(scope="module")
def space(smoke_store):
    """What the explorer's notebook defines."""
    return explored(smoke_store)


@pytest.fixture(scope="module")
def result(space):
    """What it shows."""
    return album(space)


def put(made, folder):
    """An album among the results of a page."""
    folder.mkdir(exist_ok=True)
    (folder / SHEETS).write_bytes(made.zipped)
    made.frames.to_csv(folder / "frames.csv.gz", index=False, float_format="%.6g")
    return folder


# --- what is packed -----------------------------------------------------------------------------------------


def test_a_page_has_twelve_images_six_policies_three_attacks_and_twelve_frames(tmp_path):
    sizes = {"epochs": 1, "fraction": 0.1, "dataset": "shapes"}
    for profile in ("laptop", "full"):
        space = explored(tmp_path, profile=profile, **sizes)
        asked = {key: run.unit for key, run in space["runs"].items()}
        assert len(asked) == 18
        assert list(asked) == [(scene, policy) for scene in SCENES for policy in space["POLICIES"]]
        assert {(unit.first, unit.last, unit.frames) for unit in asked.values()} == {
            (0, 12, 12),
            (0, 12, 5),
        }
        assert all(policy == unit.policy for (_, policy), unit in asked.items())
        late = [unit for unit in asked.values() if unit.model.train]
        own = profile == "full"  # else one network for all
        assert [unit.model.train.policy for unit in late] == [
            unit.policy if own else "" for unit in late
        ]


def test_the_index_says_what_the_attacks_found(space, result):
    index = result.index
    for (scene, policy), run in space["runs"].items():
        a = SCENES.index(scene)
        p = ("", HYBRID).index(policy)
        artifact, outcome, known = run.value, "psnr", policy
        target = artifact["target"].float() / 255
        if scene == "through-policy":  # what it searches is the image before the policy
            target, outcome, known = run.unit.clients().cropped.float() / 255, "psnr_before", ""
        lows = psnr(policy_image("shapes", known, True).expand_as(target).contiguous(), target)
        for image in range(2):
            expected = [float(psnr(frame, target)[image]) for frame in artifact["frames"]]
            assert index["psnr"][a][p][image] == pytest.approx(expected, rel=1e-3)
            assert index["psnr"][a][p][image][-1] == pytest.approx(
                float(artifact[outcome][image]), rel=1e-3
            )
            assert index["floor"][a][p][image] == pytest.approx(float(lows[image]), rel=1e-3)
            cost = [*artifact["trace"][:, image].tolist(), float(artifact["cost"][image])]
            assert index["cost"][a][p][image] == pytest.approx(cost, rel=1e-2)
    early, through, late = index["attacks"]
    assert late["frames"] == [0, 5, 10]
    assert late["trace"] == list(range(11))
    assert [scene["before"] for scene in (early, through, late)] == [False, True, False]
    assert index["images"] == ["disc", "ring"]
    assert [policy["id"] for policy in index["policies"]] == ["none", HYBRID]


def test_frame_steps_are_those_of_the_engine(space):
    from atslib.attacks import ATTACKS, reconstruct
    from atslib.models import build_model

    pixels = torch.rand(1, 1, 28, 28, generator=rng(0))
    model = build_model("lenet-4", 10, 1, image_size=28, rng=rng(0))
    attack = dataclasses.replace(ATTACKS["adam-cosine"], steps=7)
    made = reconstruct(observe(model, pixels, torch.tensor([1])), attack, rng=rng(0), frames=4)
    target = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    kept = {"frames": made.frames, "trace_steps": torch.arange(7), "target": target}
    rows = frame_rows(space["runs"]["adam-cosine", ""].unit, kept)
    assert list(rows["step"]) == list(made.frame_steps)


def test_the_table_holds_every_frame(space, result):
    assert len(result.frames) == 3 * 2 * 2 * 3
    ends = result.frames[result.frames["step"] == 10].query("attack == 'adam-cosine'")
    images = space["study"].table(space["runs"], ["attack", "policy"])
    both = ends.merge(images, on=["attack", "policy", "image"])
    assert len(both) == 4
    np.testing.assert_allclose(both["psnr_x"], both["psnr_y"], rtol=1e-5)


def test_a_written_album_is_read_back_and_a_damaged_one_is_refused(result, tmp_path):
    folder = put(result, tmp_path)
    again = read(folder)
    assert again.payload == json.loads(json.dumps(result.payload))
    assert again.zipped == result.zipped
    before = (folder / SHEETS).read_bytes()
    (folder / SHEETS).write_bytes(before[:100])
    with refused("sheets.zip cannot be read"):
        read(folder)
    (folder / SHEETS).unlink()
    with refused("sheets.zip cannot be read"):
        read(folder)
    other = dataclasses.replace(result, index={"format": "other"})
    (folder / SHEETS).write_bytes(other.zipped)
    with refused("'other' must be 'atslib-explorer-1'"):
        read(folder)


@pytest.fixture
def lean(space, tmp_path):
    """A store with the same attacks, whose frames were left out as in the evidence."""
    whole = space["study"].store
    few = Store(tmp_path / "lean")
    for run in space["runs"].values():
        tensors = {n: v for n, v in run.value.tensors.items() if n != "frames"}
        few.get(run.unit.kind, run.unit, lambda state, tensors=tensors: tensors)
        if run.unit.model.train:
            kept = whole.get("model", run.unit.model, pytest.fail).tensors
            few.get("model", run.unit.model, lambda state, kept=kept: kept)
    return few.root


def test_frames_that_the_evidence_leaves_out_come_from_the_page_as_it_was(result, lean, tmp_path):
    kept = put(result, tmp_path / "kept")
    again = album(explored(lean), kept=kept)
    assert again.zipped == result.zipped
    with pytest.raises(KeyError, match="frames"):
        album(explored(lean))


def test_frames_of_another_attack_are_not_taken(result, lean, tmp_path):
    kept = put(result, tmp_path / "kept")
    other = dataclasses.replace(result, index=result.index | {"keys": [["x", "y"]] * 3})
    put(other, tmp_path / "other")
    with pytest.raises(KeyError, match="frames"):
        album(explored(lean), kept=tmp_path / "other")
    policies = {"": "No policy", "3-1-7": "My own", HYBRID: "Hybrid of both"}
    more = album(explored(lean, instead={"POLICIES": policies}), kept=kept)
    assert more.index["policies"][1] == {
        "id": "3-1-7",
        "title": "My own",
        "operations": "translate X 9 → contrast 6 → translate Y 2",
    }
    for scene in range(3):
        assert more.files[f"{scene}-2.webp"] == result.files[f"{scene}-1.webp"]
        assert more.index["psnr"][scene][2] == result.index["psnr"][scene][1]
        assert len(more.index["psnr"][scene][1][0]) == 3
    assert pictures(more.payload, CLIENTS).shape[0] == 4


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


def test_frames_are_packed_within_the_budget(space, result, monkeypatch):
    best = sum(map(len, result.files.values()))
    monkeypatch.setattr(frames, "BUDGET", best // 2)
    small = album(space)
    assert sum(len(data) for name, data in small.files.items() if name != CLIENTS) <= best // 2


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


def test_the_signs_that_are_said_are_those_that_were_drawn():
    unit = attack_unit(settings(profile="smoke", images=6), "3-1-7")
    moved = crop_and_flip(dataset("shapes", "test")[:6].pixels, rng=rng(0, "crop and flip"))
    words = words_drawn(unit)
    assert len(set(words)) > 1
    signs = torch.tensor(
        [[-1 if "−" in part else 1 for part in text.split(" → ")] for text in words]
    )
    assert torch.equal(Policy((3, 1, 7)).apply_signs(moved, signs), unit.clients().used())


# --- the page -----------------------------------------------------------------------------------------------


def test_the_html_is_whole_asks_for_nothing_and_a_class_name_cannot_end_its_script(result):
    assert_asks_for_nothing(to_html(result.payload))
    payload = result.payload | {"images": ["</script><b>", "ring"]}
    text = to_html(payload)
    assert "</script><b>" not in text
    data = re.search(r'<script type="application/json">(.*?)</script>', text, re.S).group(1)
    assert json.loads(data) == payload


def test_the_still_picture_is_small_and_shows_first_and_last_policy(result):
    picture = Image.open(io.BytesIO(still(result.payload)))
    assert picture.format == "PNG"
    assert picture.width > 200
    assert len(still(result.payload)) < 60_000


def test_where_no_reader_is_the_page_is_shown(result):
    shown = show(result.payload, settings(profile="smoke"), Store("unused"))
    assert isinstance(shown, Page)
    assert repr(shown) == "Explorer of 2 images under 2 policies"
    assert shown._repr_html_() == to_html(result.payload)


def test_a_reader_at_a_kernel_gets_the_live_explorer(result, smoke_store, monkeypatch):
    pytest.importorskip("anywidget")
    front_end = SimpleNamespace(kernel=SimpleNamespace(_allow_stdin=True))
    monkeypatch.setattr("IPython.get_ipython", lambda: front_end)
    arguments = result.payload, settings(profile="smoke"), Store(smoke_store)
    shown = show(*arguments)
    assert repr(shown) == "Explorer with a kernel"
    shown.close()
    front_end.kernel._allow_stdin = False  # papermill and other machines
    assert isinstance(show(*arguments), Page)


def test_the_library_needs_no_jupyter():
    absent = "import sys; sys.modules.update(dict.fromkeys(['anywidget', 'traitlets', 'ipywidgets', 'IPython']))"
    code = f"{absent}; import atsbook.widgets.live; from atsbook.widgets.explorer import person_is_there"
    code += "; assert not person_is_there()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- a reader's own attack ----------------------------------------------------------------------------------


@pytest.fixture
def heard():
    return []


@pytest.fixture
def session(smoke_store, heard):
    made = Session(
        settings(profile="smoke"), Store(smoke_store), lambda *message: heard.append(message)
    )
    yield made
    made.stop()
    assert made.wait(20)


def finish(session, heard, **request):
    """Run to the end: the messages."""
    heard.clear()
    session.run(**request)
    assert session.wait(60)
    return list(heard)


def kinds(messages):
    return [content["kind"] for content, _ in messages]


def uint8(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(1, 3, 32, 32)


def test_frames_come_from_the_start_to_the_last_step(session, heard):
    messages = finish(session, heard, policy="3-0", image=4, steps=5)
    assert kinds(messages)[0] == "started"
    assert kinds(messages)[-1] == "ended"
    frames = [message for message in messages if message[0]["kind"] == "frame"]
    assert frames[0][0]["step"] == 0
    assert frames[0][0]["cost"] is None  # JSON has no nan
    assert frames[-1][0]["step"] == 5
    started, (original, target) = messages[0]
    one = dataset("shapes", "test")[4]
    assert torch.equal(uint8(original), one.pixels)
    sign = 1 if "+" in started["operations"] else -1
    assert torch.equal(
        uint8(target), Policy((3, 0)).apply_signs(one.pixels, torch.tensor([[sign, 1]]))
    )
    shown = uint8(frames[-1][1][0]).float() / 255
    assert frames[-1][0]["psnr"] == pytest.approx(
        float(psnr(shown, uint8(target).float() / 255)), abs=0.1
    )
    guess = policy_image("shapes", "3-0", False)
    assert started["floor"] == pytest.approx(float(psnr(guess, uint8(target).float() / 255)))
    json.dumps([content for content, _ in messages], allow_nan=False)


def test_stop_ends_it_and_a_second_run_is_refused_kindly(session, heard):
    began = threading.Event()
    emit = session.emit
    session.emit = lambda content, buffers: (
        emit(content, buffers),
        content["kind"] == "frame" and began.set(),
    )
    session.run(steps=STEPS)
    assert began.wait(60)
    session.run(steps=5)
    (busy,) = (content["message"] for content, _ in heard if content.get("busy"))
    assert busy == "An attack is running: stop it first."
    session.stop()
    assert session.wait(10)
    assert re.match(r"Stopped after step \d+\. adam-cosine-tv on lenet", heard[-1][0]["message"])
    assert kinds(finish(session, heard, steps=2))[-1] == "ended"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"policy": "3-99"}, "policy '3-99': no operation [99]; ids run 0..49"),
        ({"policy": "3-1-7+4"}, "policy '3-1-7+4': expected ids joined by '-'"),
        ({"steps": STEPS + 1}, f"steps {STEPS + 1} must be a whole number from 2 to {STEPS}"),
        ({"steps": None}, "steps None must be"),
        ({"attack": "lbfgs-l2"}, "attack 'lbfgs-l2' is unknown"),
        ({"network": "resnet99"}, "network 'resnet99' is unknown"),
        (
            {"stage": "trained", "network": "convnet-16"},
            "no trained convnet-16 for policy none in the store; there is untrained",
        ),
        ({"image": 10**6}, "index 1000000 is outside the"),
        ({"upload": b"hello"}, "the file is no image that can be read"),
        (
            {"upload": bytes(UPLOAD_BYTES + 1)},
            "the image file has 10.0 MB; at most 10 MB are taken",
        ),
        ({"nonsense": 1}, "the attack failed: TypeError"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_a_fault_is_one_message_and_the_next_run_works(session, heard, request_, message):
    messages = finish(session, heard, **request_)
    assert kinds(messages) == ["fault"]
    assert messages[0][0]["message"].startswith(message)
    assert "\n" not in messages[0][0]["message"]
    if "upload" in request_:
        assert kinds(finish(session, heard, steps=2))[-1] == "ended"


def encoded(size, mode="RGB", kind="PNG"):
    return written(Image.new(mode, size, 200).save, kind)


def test_an_upload_is_cut_and_resized_and_has_the_label_that_the_network_sees(session, heard):
    messages = finish(session, heard, upload=encoded((90, 60), "RGBA"), steps=2)
    assert kinds(messages)[-1] == "ended"
    assert uint8(messages[0][1][0]).unique().tolist()[-1] == 200
    names = dataset("shapes", "test").class_names
    assert any(messages[0][0]["message"].endswith(f"label {name}") for name in names)


@pytest.mark.parametrize("size", [(3, 32, 32), (1, 28, 28)])
def test_images_of_any_kind_become_the_data_sets(size):
    for mode, kind in (("RGB", "JPEG"), ("L", "PNG"), ("P", "GIF"), ("RGBA", "WEBP")):
        assert read_upload(encoded((50, 20), mode, kind), size).shape == (1, *size)


def test_a_truncated_or_giant_upload_is_refused():
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    with refused("no image that can be read"):
        read_upload(written(Image.fromarray(noise).save, "PNG")[:2000], (3, 32, 32))
    with refused("8000×8000 pixels; at most 50 million"):
        read_upload(encoded((8000, 8000), "1"), (3, 32, 32))


def test_an_upload_of_sixteen_bits_keeps_its_range_or_is_refused():
    seen = np.full((8, 8), 2048, np.uint16)
    seen[0, 0] = 4095  # of a device of 12 bits
    grey = read_upload(written(Image.fromarray(seen).save, "PNG"), (1, 8, 8))
    assert grey[0, 0, 4, 4] == 128
    for mode in ("I", "F"):
        with refused("the image has 32 bits per pixel and no known range"):
            read_upload(written(Image.new(mode, (4, 4)).save, "TIFF"), (3, 32, 32))


# --- networks ------------------------------------------------------------------------------------------------


def test_networks_are_those_of_the_store_by_stage(store):
    chosen = settings(profile="smoke")
    offered = {name: list(stages) for name, stages in networks(chosen, store).items()}
    assert offered == {name: ["untrained"] for name in ("lenet", "convnet-16", "convnet-4")}
    trained = ((4, ""), (4, "3-1-7"), (1, ""))
    kept = {
        (n, ids): model_unit(chosen, ids, train=TrainConfig(policy=ids, epochs=n))
        for n, ids in trained
    }
    other = [
        model_unit(chosen, dataset="cifar100"),
        model_unit(chosen, train=TrainConfig(defense="prune:0.9")),
    ]
    another_version = {"dataset": "shapes", "model": "x", "train": {"epoch": 1}}
    for unit in (*kept.values(), *other, another_version):
        store.get("model", unit, lambda state: {"x": torch.zeros(1)})
    stages = networks(chosen, store)
    assert set(stages) == set(offered)
    assert list(stages["convnet-4"]) == ["untrained", "trained", "semi-trained"]
    assert pick(stages, "convnet-4", "trained", "3-1-7") == kept[4, "3-1-7"]
    assert pick(stages, "convnet-4", "trained", "5") == kept[4, ""]
    assert pick(stages, "convnet-4", "semi-trained", "3-1-7") == kept[1, ""]
    assert pick(stages, "convnet-4", "untrained", "3").train is None


def test_a_trained_network_says_what_it_was_trained_with(session, heard, result):
    messages = finish(
        session, heard, network="convnet-4", stage="trained", policy=str(Policy((5,))), steps=2
    )
    assert "adam-cosine-tv on convnet-4 (trained, policy none)" in messages[0][0]["message"]


def test_stop_ends_the_training_of_a_damaged_network_and_the_next_run_goes_on(
    store, heard, monkeypatch
):
    chosen = settings(profile="smoke")
    unit = model_unit(chosen, train=TrainConfig(epochs=500), fraction=0.02)
    store.get("model", unit, lambda state: {"x": torch.zeros(1)})
    file = store.path("model", unit)
    file.write_bytes(b"damaged")
    session = Session(chosen, store, lambda *message: heard.append(message))
    request = {"network": "convnet-4", "stage": "trained", "steps": 2}
    session.run(**request)
    while not file.with_suffix(".state").exists():  # an epoch is done
        assert not session.wait(0.02)
    asked = time.monotonic()
    session.stop()
    assert session.wait(30)
    assert time.monotonic() - asked < 5
    assert kinds(heard) == ["training", "ended"]
    assert (
        heard[0][0]["message"]
        == "The stored convnet-4 is damaged or gone: it is trained again first, 500 epochs …"
    )
    assert heard[1][0]["message"].startswith("Stopped in the training of convnet-4")
    assert not store.has("model", unit)

    begun, rate = [], "atslib.clients.training.learning_rate"
    monkeypatch.setattr(rate, lambda config, epoch: begun.append(epoch) or session.stop())
    assert kinds(finish(session, heard, **request)) == ["ended"]  # the network is still offered
    (epoch,) = begun
    assert epoch > 0


def test_a_network_that_had_to_be_trained_is_attacked(session, heard, monkeypatch):
    monkeypatch.setattr(
        "atsbook.widgets.live.INTERVAL", 0
    )  # every frame is sent, however fast the machine
    unit = model_unit(settings(profile="smoke"), train=TrainConfig(epochs=1), fraction=0.005)
    session._networks = {"convnet-4": {"trained": [unit]}}
    messages = finish(session, heard, network="convnet-4", stage="trained", steps=2)
    assert kinds(messages)[:2] == ["training", "started"]
    assert kinds(messages)[-1] == "ended"
    again = finish(session, heard, network="convnet-4", stage="trained", steps=2)
    assert kinds(again) == kinds(messages)[1:]
    assert again[-1] == messages[-1]


# --- in Jupyter ----------------------------------------------------------------------------------------------


def test_the_widget_joins_the_form_to_a_session(result, smoke_store, monkeypatch):
    pytest.importorskip("anywidget")
    from atsbook.widgets.jupyter import ExplorerWidget

    widget, sent = ExplorerWidget(result.payload, settings(profile="smoke"), Store(smoke_store)), []
    monkeypatch.setattr(widget, "send", lambda content, buffers: sent.append(content["kind"]))
    assert repr(widget) == "Explorer with a kernel"
    json.dumps(widget.get_state(["payload", "options"]), allow_nan=False)
    widget._handle_custom_msg(
        {"kind": "run", "policy": "3", "steps": 2}, [memoryview(encoded((40, 40)))]
    )
    assert widget.session.wait(60)
    assert (sent[:2], sent[-1]) == (["started", "frame"], "ended")
    widget._handle_custom_msg({"kind": "stop"}, [])
    assert widget.session._stop.is_set()
    widget.close()
