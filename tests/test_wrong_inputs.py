"""A generator of wrong inputs: types, shapes, ranges, networks and files.

Each ends in one sentence or a right value.

Each door has a call that is right. One or two of its arguments are replaced by what nobody should
give, drawn by hypothesis; what comes back is then an `AtsError` of one line, or a value that is
checked. The draws are the same each time.
"""

import contextlib
import dataclasses
import functools
import io
import json
import math
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

import atslib
from atsaudit import __main__ as audit
from atsaudit import update_files
from atsbook.store import Store
from atsfed import Federation, Tap
from atslib import ATTACKS, AtsError, Images, Normalize, SearchConfig, ThreatModel, TrainConfig
from atslib import __main__ as library
from atslib.checkpoints import write_tensors
from atslib.clients.records import observed
from atslib.clients.training import load_checkpoint, save_checkpoint
from atslib.clients.updates import LocalTraining, observe_weights
from atslib.clients.view import Observed
from atslib.gradients.problems import example_gradients
from atslib.measures.batches import align, label_share
from atslib.measures.identification import identification
from atslib.measures.metrics import feature_mse, mse, ssim
from atslib.models import scores_in, shared_parameters
from atslib.policies.policy import load_policies
from atslib.scores.scores import accuracy_score

pytestmark = pytest.mark.usefixtures("one_thread")

IMAGES = atslib.load("shapes", "test")[4:6]
PIXELS, LABELS = IMAGES.pixels / 255, IMAGES.labels
MODEL = atslib.build_model("lenet-2", 10, norm="shapes", rng=0)
SEEN = atslib.observe(MODEL, PIXELS, LABELS)
ATTACK = dataclasses.replace(ATTACKS["adam-cosine"], steps=1)
ASKED, DONE = Counter(), Counter()  # draws of each test


def cases(count, **drawn):
    """So many draws of a test, the same each time."""
    plain = {"derandomize": True, "deadline": None, "database": None, "phases": [Phase.generate]}

    def of(test):
        @functools.wraps(test)
        def counted(*args, **options):
            DONE[test.__name__] += 1
            return test(*args, **options)

        ASKED[test.__name__] = count
        checks = list(HealthCheck)
        return settings(max_examples=count, suppress_health_check=checks, **plain)(
            given(**drawn)(counted)
        )

    return of


def one_sentence(call, *args, **options):
    """What a call gives; None where it ends in an `AtsError`, which must be one line.

    Anything else is a failure.
    """
    try:
        return call(*args, **options)
    except AtsError as error:
        said = str(error)
        assert said, "an error without a word"
        assert "\n" not in said, said
        return None


# --- what nobody should give ----------------------------------------------------------------------------------------

WORDS = [
    "",
    "a",
    "0",
    "3-1-7",
    "../x",
    "lenet",
    "lenet-0",
    "\x00",
    "nan",
    "é" * 40,
    "clip:1 | 3",
    "-1",
]
NUMBERS = [
    0,
    1,
    -1,
    2,
    7,
    10**8,
    -(10**8),
    2**63,
    0.5,
    -0.5,
    1e-300,
    1e300,
    math.nan,
    math.inf,
    -math.inf,
    True,
]
DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.uint8,
    torch.int32,
    torch.int64,
]
DTYPES += [torch.bool, torch.complex64, torch.uint16, torch.uint64, torch.int8]
SHAPES = [
    (),
    (0,),
    (1,),
    (2,),
    (3,),
    (2, 2),
    (2, 3, 32),
    (2, 3, 32, 32),
    (1, 3, 32, 32),
    (2, 1, 32, 32),
]
SHAPES += [
    (2, 3, 31, 32),
    (0, 3, 32, 32),
    (2, 3, 0, 0),
    (2, 3, 1, 1),
    (2, 3, 3, 32, 32),
    (2, 32, 32, 3),
]
FILLS = [0.0, 0.5, 1.0, 1.005, 2.0, 255.0, -1.0, math.nan, math.inf]


def filled(shape, dtype, value):
    if dtype == torch.bool or not dtype.is_floating_point:
        value = (
            0
            if not math.isfinite(value)
            else int(abs(value)) % 2
            if dtype == torch.bool
            else int(value)
        )
        value = (
            abs(value) if dtype in (torch.uint8, torch.uint16, torch.uint64) else min(value, 127)
        )
    return torch.full(shape, value, dtype=torch.float64).to(dtype)


def ragged(array, how):
    """The same array, as numpy may hold it."""
    return {
        "reversed": lambda: array[::-1],
        "foreign bytes": lambda: array.astype(array.dtype.newbyteorder(">")),
        "fortran": lambda: np.asfortranarray(array),
        "every other": lambda: np.repeat(array, 2, 0)[::2],
        "read only": lambda: frozen(array),
        "objects": lambda: array.astype(object),
        "text": lambda: array.astype(str),
        "long floats": lambda: array.astype(np.longdouble),
    }[how]()


def frozen(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def laid_out(tensor, how):
    """The same values, as torch may hold them, or none."""
    if how == "with a gradient":
        return tensor.clone().requires_grad_(tensor.dtype.is_floating_point)
    if tensor.dtype not in (torch.float32, torch.int64, torch.uint8) or not tensor.ndim:
        return tensor  # torch itself has no other form of it
    return {
        "sparse": lambda: tensor.to_sparse(),
        "nested": lambda: (
            torch.nested.as_nested_tensor([tensor], layout=torch.jagged)
            if tensor.ndim and tensor.dtype == torch.float32
            else tensor
        ),
        "without values": lambda: tensor.to("meta"),
        "turned": lambda: (
            tensor.flip(0).transpose(0, -1).transpose(0, -1).flip(0) if tensor.ndim else tensor
        ),
    }.get(how, lambda: tensor)()


TENSORS = st.builds(
    laid_out,
    st.builds(filled, st.sampled_from(SHAPES), st.sampled_from(DTYPES), st.sampled_from(FILLS)),
    st.sampled_from(
        ["", "", "", "", "", "with a gradient", "sparse", "nested", "without values", "turned"]
    ),
)
HOW = [
    "reversed",
    "foreign bytes",
    "fortran",
    "every other",
    "read only",
    "objects",
    "text",
    "long floats",
]
ARRAYS = st.builds(ragged, st.sampled_from([PIXELS.numpy(), LABELS.numpy()]), st.sampled_from(HOW))
SCALARS = st.one_of(
    st.none(), st.sampled_from(WORDS), st.sampled_from(NUMBERS), st.integers(), st.floats()
)
LISTS = st.one_of(
    st.lists(SCALARS, max_size=3),
    st.tuples(SCALARS, SCALARS),
    st.dictionaries(st.text(max_size=2), SCALARS),
)
OBJECTS = st.sampled_from(
    [object(), len, dict, b"bytes", {1, 2}, 3j, np.float32(0.5), np.int64(2), torch.nn.ReLU()]
)
JUNK = st.one_of(SCALARS, LISTS, OBJECTS, TENSORS, ARRAYS)


def called(door, right, wrong):
    """The door with some arguments replaced, and the arguments as they were."""
    given_ = {**right, **wrong}
    return given_, one_sentence(door, **given_)


def changes(names, values=JUNK, most=2):
    """Some of the arguments, with other values."""
    return st.dictionaries(st.sampled_from(sorted(names)), values, min_size=1, max_size=most)


# --- networks ----------------------------------------------------------------------------------------------------


class Gives(nn.Module):
    """A network that ends in something else than scores."""

    def __init__(self, what):
        super().__init__()
        self.normalize, self.linear, self.what = (
            Normalize((0.5,), (0.25,)),
            nn.Linear(3072, 10),
            what,
        )

    def forward(self, x):
        return self.what(self.linear(self.normalize(x).flatten(1)))


def listed(*layers):
    return nn.Sequential(Normalize((0.5,), (0.25,)), *layers).eval()


def spoiled(value):
    model = atslib.build_model("lenet-2", 10, rng=0)
    with torch.no_grad():
        next(model.parameters()).fill_(value)
    return model


ENDS = {
    "scores": lambda z: z,
    "probabilities": lambda z: z.log_softmax(1),
    "a tuple": lambda z: (z, z),
    "a dict": lambda z: {"logits": z},
    "nothing": lambda z: None,
    "one score": lambda z: z[:, :1],
    "no score": lambda z: z[:, :0],
    "one row": lambda z: z[:1],
    "a vector": lambda z: z[:, 0],
    "maps": lambda z: z[..., None, None],
    "classes": lambda z: z.argmax(1),
    "whole numbers": lambda z: z.long(),
    "complex numbers": lambda z: z.to(torch.complex64),
    "no gradient": lambda z: z.detach(),
    "a wrong layer": lambda z: F.linear(z, torch.zeros(3, 4)),
    "an error of its own": lambda z: {}["missing"],
    "mixed": lambda z: z - z.mean(0),
    "rounded": lambda z: z.round(),
    "numpy": lambda z: torch.from_numpy(z.detach().numpy()),
    "nan": lambda z: z * math.nan,
}
NETWORKS = {
    **{f"gives {name}": lambda end=end: Gives(end).eval() for name, end in ENDS.items()},
    "no layer": lambda: listed(),
    "no parameters": lambda: listed(nn.Flatten()),
    "nothing": lambda: nn.Sequential(),
    "without normalization": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)),
    "normalization last": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 10), Normalize((0.5,), (0.25,))
    ),
    "grey": lambda: atslib.build_model("lenet-2", 10, 1, rng=0),
    "for other sizes": lambda: atslib.build_model("lenet-2", 10, image_size=64, rng=0),
    "of two classes": lambda: atslib.build_model("lenet-2", 2, rng=0),
    "frozen": lambda: atslib.build_model("lenet-2", 10, rng=0).requires_grad_(False),
    "partly frozen": lambda: half_frozen(),
    "of nan": lambda: spoiled(math.nan),
    "of infinity": lambda: spoiled(math.inf),
    "of zeros": lambda: spoiled(0.0),
    "in half": lambda: atslib.build_model("lenet-2", 10, rng=0).half(),
    "in bfloat16": lambda: atslib.build_model("lenet-2", 10, rng=0).bfloat16(),
    "in double": lambda: atslib.build_model("lenet-2", 10, rng=0).double(),
    "complex": lambda: listed(nn.Flatten(), nn.Linear(3072, 10, dtype=torch.complex64)),
    "on meta": lambda: atslib.build_model("lenet-2", 10, rng=0).to("meta"),
    "lazy": lambda: listed(nn.Flatten(), nn.LazyLinear(10)),
    "in train mode": lambda: atslib.build_model("resnet20-1", 10, rng=0).train(),
    "normalizing vectors": lambda: listed(
        nn.Flatten(), nn.Linear(3072, 4), nn.BatchNorm1d(4), nn.Linear(4, 10)
    ),
    "synchronized": lambda: listed(
        nn.Conv2d(3, 4, 3), nn.SyncBatchNorm(4), nn.Flatten(), nn.Linear(3600, 10)
    ),
    "with dropout": lambda: listed(nn.Flatten(), nn.Dropout(), nn.Linear(3072, 10)),
    "random": lambda: listed(nn.Flatten(), nn.RReLU(), nn.Linear(3072, 10)),
    "embedding": lambda: listed(nn.Flatten(), nn.Embedding(4, 10)),
    "recurrent": lambda: listed(nn.Flatten(2), nn.LSTM(1024, 4)),
    "three-dimensional": lambda: listed(nn.Conv3d(3, 4, 3), nn.Flatten(), nn.Linear(8, 10)),
    "none": lambda: None,
    "a class": lambda: nn.Linear,
    "weights": lambda: MODEL.state_dict(),
}


def half_frozen():
    model = atslib.build_model("lenet-2", 10, rng=0)
    next(model.parameters()).requires_grad_(False)
    return model


def plain(model, image, label):
    """torch's own gradient of one image, flattened; zeros of what is not used."""
    own = list(shared_parameters(model).values())
    loss = F.cross_entropy(scores_in(model(image)), label)
    gradients = torch.autograd.grad(loss, own, allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(p) if g is None else g).flatten()
            for g, p in zip(gradients, own, strict=True)
        ]
    )


def assert_observed(model, images, labels, seen):
    """What was seen is torch's own gradient of these images and labels."""
    assert isinstance(seen, Observed)
    like = next(model.parameters())
    images = (
        torch.as_tensor(np.array(images), dtype=like.dtype)
        if isinstance(images, np.ndarray)
        else images.to(like)
    )
    labels = (
        torch.as_tensor(np.array(labels, dtype=np.int64))
        if isinstance(labels, np.ndarray)
        else labels.long()
    )
    model = model.eval()
    for row, image, label in zip(seen.gradients, images.split(1), labels.split(1), strict=True):
        wanted = plain(model, image, label)
        loose = 1e-3 if like.dtype in (torch.float32, torch.float64) else 0.1
        assert float((row - wanted).norm()) <= loose * float(wanted.norm()) + 1e-6


@pytest.mark.filterwarnings(
    "ignore:.*take.? no part", "ignore:Lazy modules", "ignore:.*is taken as the class scores"
)
@pytest.mark.parametrize("name", NETWORKS)
def test_any_network_is_observed_rightly_or_refused(name):
    model = NETWORKS[name]()
    seen = one_sentence(atslib.observe, model, PIXELS, LABELS)
    if seen is not None:
        assert_observed(model, PIXELS, LABELS, seen)
        for threat in (
            ThreatModel(labels="inferred"),
            ThreatModel(labels="restored"),
            ThreatModel(labels="optimized"),
        ):
            view = one_sentence(atslib.observe, model, PIXELS, LABELS, threat=threat)
            run = one_sentence(atslib.reconstruct, view, ATTACK, rng=0)
            assert run is None or run.images.shape == PIXELS.shape
    one_sentence(
        atslib.observe, model, PIXELS, LABELS, threat=ThreatModel(victim="train", batch=2), rng=0
    )
    local = {"local": LocalTraining(), "rng": 0}
    one_sentence(observe_weights, model, PIXELS, LABELS, **local)
    one_sentence(example_gradients, model, PIXELS, LABELS)
    one_sentence(atslib.evaluate, model, IMAGES)
    one_sentence(accuracy_score, model, IMAGES, "3", rng=0)
    score = one_sentence(atslib.privacy_score, model, IMAGES, "3", rng=0, points=2)
    assert score is None or score.isfinite().all()


@cases(220, wrong=changes(["images", "labels", "threat", "defense", "rng"]))
def test_observe(wrong):
    right = {"model": MODEL, "images": PIXELS, "labels": LABELS}
    asked, seen = called(atslib.observe, right, wrong)
    if seen is not None and not asked.get("defense") and asked.get("threat") is None:
        assert_observed(MODEL, asked["images"], asked["labels"], seen)


@cases(150, wrong=changes(["attack", "rng", "start", "frames", "chunk", "keep_restarts", "seen"]))
def test_reconstruct(wrong):
    _, run = called(atslib.reconstruct, {"seen": SEEN, "attack": ATTACK, "rng": 0}, wrong)
    assert run is None or run.images.shape == PIXELS.shape


FIELDS = {
    ATTACK: [field.name for field in dataclasses.fields(ATTACK)],
    TrainConfig(): [field.name for field in dataclasses.fields(TrainConfig)],
    SearchConfig(): [field.name for field in dataclasses.fields(SearchConfig)],
    ThreatModel(): [field.name for field in dataclasses.fields(ThreatModel)],
    LocalTraining(): [field.name for field in dataclasses.fields(LocalTraining)],
}


@cases(
    250,
    drawn=st.sampled_from(list(FIELDS)).flatmap(
        lambda c: st.tuples(st.just(c), changes(FIELDS[c]))
    ),
)
def test_configs(drawn):
    config, wrong = drawn
    made = one_sentence(dataclasses.replace, config, **wrong)
    if made is not None:
        for name, value in wrong.items():  # nothing was changed in silence
            kept = getattr(made, name)
            assert (
                kept is value or kept == value or (isinstance(value, float) and math.isnan(value))
            )
    if (
        made is not None
        and type(made) is type(ATTACK)
        and made.steps * made.restarts * made.inner < 30
    ):
        one_sentence(atslib.reconstruct, SEEN, made, rng=0)


@cases(
    9, restarts=st.sampled_from([10**6, 10**8, 10**12]), steps=st.sampled_from([1, 10**9, 10**15])
)
def test_more_than_fits_in_memory(restarts, steps):
    asked = one_sentence(dataclasses.replace, ATTACK, restarts=restarts, steps=steps)
    assert asked is None or one_sentence(atslib.reconstruct, SEEN, asked, rng=0) is None


@cases(
    160,
    metric=st.sampled_from([atslib.psnr, mse, ssim, feature_mse]),
    wrong=changes(["estimate", "truth"]),
)
def test_metrics(metric, wrong):
    options = {"model": MODEL} if metric is feature_mse else {}
    asked, value = called(metric, {**options, "estimate": PIXELS, "truth": PIXELS}, wrong)
    if value is not None:
        assert value.shape == (len(asked["truth"]),)
        if metric in (atslib.psnr, mse):
            error = (
                (asked["estimate"].double() - asked["truth"].double()).square().flatten(1).mean(1)
            )
            wanted = error if metric is mse else -10 * error.log10()
            finite = error.isfinite()
            torch.testing.assert_close(value[finite].double(), wanted[finite], rtol=1e-4, atol=1e-5)
            assert not value[~finite].isfinite().any()


@cases(60, data_range=SCALARS)
def test_the_range_of_a_metric(data_range):
    value = one_sentence(atslib.psnr, PIXELS, 0.5 * PIXELS, data_range=data_range)
    assert value is None or not value.isnan().any()


@cases(120, wrong=changes(["reconstructed", "truth", "labels", "restored"]))
def test_pairings(wrong):
    right = {"reconstructed": PIXELS, "truth": PIXELS, "labels": LABELS}
    _, order = called(align, right, wrong)
    assert order is None or sorted(order.tolist()) == list(range(len(order)))
    one_sentence(
        label_share, wrong.get("restored", LABELS[None]), wrong.get("labels", LABELS[None])
    )


@cases(60, wrong=changes(["reconstructions", "candidates", "truth", "shift"]))
def test_identification(wrong):
    right = {"reconstructions": PIXELS, "candidates": PIXELS, "truth": torch.arange(2)}
    _, ranks = called(identification, right, wrong)
    assert ranks is None or ((ranks >= 1) & (ranks <= 2)).all()


@cases(60, mean=JUNK, std=JUNK)
def test_normalizations(mean, std):
    layer = one_sentence(Normalize, mean, std)
    if layer is not None:
        assert layer.mean.isfinite().all()
        assert (layer.std > 0).all()


@cases(
    60,
    wrong=changes(
        ["name", "num_classes", "in_channels", "image_size", "norm", "rng"],
        st.one_of(SCALARS, LISTS),
    ),
)
def test_networks_by_name(wrong):
    right = {"name": "lenet-2", "num_classes": 10, "rng": 0}
    asked, model = called(atslib.build_model, right, wrong)
    if model is not None:
        side, channels = asked.get("image_size", 32), asked.get("in_channels", 3)
        assert model(torch.zeros(1, channels, side, side)).shape == (1, asked["num_classes"])


@cases(
    80, wrong=changes(["images", "policy", "points", "draws", "first", "starts", "variant", "rng"])
)
def test_privacy_scores(wrong):
    _, score = called(
        atslib.privacy_score,
        {"model": MODEL, "images": IMAGES, "policy": "3", "points": 2, "rng": 0},
        wrong,
    )
    assert score is None or score.isfinite().all()


@cases(60, wrong=changes(["images", "policy", "batch", "variant", "rng"]))
def test_accuracy_scores(wrong):
    _, score = called(
        accuracy_score, {"model": MODEL, "images": IMAGES, "policy": "3", "rng": 0}, wrong
    )
    assert score is None or math.isfinite(score)


@cases(80, text=st.one_of(JUNK, st.text("0123456789-+_ ", max_size=8)), pixels=JUNK)
def test_policies(text, pixels):
    policy = one_sentence(atslib.parse_policy, text)
    if policy is not None:
        assert one_sentence(atslib.parse_policy, str(policy)) == policy
        out = one_sentence(policy, pixels, rng=0)
        assert out is None or (out.shape == pixels.shape and out.dtype == torch.uint8)


@cases(80, wrong=changes(["pixels", "labels", "class_names", "index", "fraction"]))
def test_images(wrong):
    right = {
        "pixels": IMAGES.pixels,
        "labels": LABELS,
        "class_names": IMAGES.class_names,
        "name": "x",
        "split": "y",
    }
    given_ = {name: value for name, value in wrong.items() if name in right}
    images = one_sentence(Images, **{**right, **given_})
    if images is not None:
        assert len(images) == len(images.labels)
        one_sentence(lambda: images[wrong.get("index", 0)])
        one_sentence(images.subset, wrong.get("fraction", 0.5), rng=0)


@cases(60, config=JUNK, other=JUNK)
def test_keys_of_the_store(config, other):
    store = Store("store")
    paths = [one_sentence(store.path, "kind", {"config": value}) for value in (config, other)]
    assert None not in paths
    same = type(config) is type(other) and repr(config) == repr(other)
    if not same and isinstance(config, torch.Tensor) and isinstance(other, torch.Tensor):
        assert (paths[0] == paths[1]) == (
            config.dtype == other.dtype
            and config.shape == other.shape
            and repr(config.tolist()) == repr(other.tolist())
        )
    assert paths[0] == Store("store").path("kind", {"config": config})


def header(words):
    """The bytes of a safetensors file with this header and one number."""
    text = json.dumps(words).encode()
    return struct.pack("<Q", len(text)) + text + b"\0\0\0\0"


ENTRY = {"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
FILES = st.one_of(
    st.binary(max_size=64),
    st.builds(
        lambda facts: header({"__metadata__": {"facts": facts}, **ENTRY}),
        st.sampled_from(["[]", "3", "{", "null", "{}"]),
    ),
    st.builds(
        lambda tied: header({"__metadata__": {"tied": tied}, **ENTRY}),
        st.sampled_from(["[]", '{"y": "z"}', "{"]),
    ),
    st.builds(
        lambda words: header({"__metadata__": words}),
        st.dictionaries(st.text(max_size=3), SCALARS, max_size=2),
    ),
    st.builds(lambda value: json.dumps(value, default=str).encode(), st.one_of(SCALARS, LISTS)),
)


@pytest.mark.filterwarnings("ignore:.*carries no hash")
@cases(100, content=FILES, cut=st.integers(0, 400))
def test_files(tmp_path_factory, content, cut):
    folder = tmp_path_factory.mktemp("files")
    file = folder / "some file"
    file.write_bytes(content)
    assert one_sentence(load_checkpoint, file, MODEL) is None
    one_sentence(load_policies, file)
    save_checkpoint(file, MODEL, dataset="shapes")
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[cut % len(whole)] ^= 1 + cut % 255
    before = {name: value.clone() for name, value in MODEL.state_dict().items()}
    for damaged in (whole[: cut % len(whole)], bytes(flipped)):
        file.write_bytes(damaged)
        facts = one_sentence(load_checkpoint, file, MODEL)
        assert facts in (
            None,
            {"dataset": "shapes"},
        )  # a flip in the name of the hash hurts nothing, and warns
    assert all(torch.equal(value, before[name]) for name, value in MODEL.state_dict().items())
    file.write_bytes(whole)
    assert load_checkpoint(Path(file), MODEL) == {"dataset": "shapes"}


# --- networks of drawn layers ----------------------------------------------------------------------------------------

SMALL = PIXELS[..., :8, :8]


class Fold(nn.Module):
    """What networks do between their layers."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        return self.how(x)


LAYERS = {
    "convolution": lambda: nn.LazyConv2d(4, 3, padding=1),
    "grouped": lambda: nn.Conv2d(4, 4, 3, groups=2, padding=1),
    "strided": lambda: nn.LazyConv2d(4, 2, stride=2, bias=False),
    "transposed": lambda: nn.LazyConvTranspose2d(4, 2),
    "normalized": lambda: nn.LazyBatchNorm2d(),
    "by group": lambda: nn.GroupNorm(2, 4),
    "by instance": lambda: nn.InstanceNorm2d(4, affine=True),
    "by layer": lambda: nn.LayerNorm(8),
    "relu": nn.ReLU,
    "in place": lambda: nn.ReLU(inplace=True),
    "hard": nn.Hardswish,
    "random": nn.RReLU,
    "dropout": nn.Dropout,
    "largest": lambda: nn.MaxPool2d(2),
    "mean": lambda: nn.AdaptiveAvgPool2d(2),
    "flat": nn.Flatten,
    "linear": lambda: nn.LazyLinear(6),
    "softmax": lambda: nn.Softmax(0),
    "mixed": lambda: Fold(lambda x: x - x.mean(0)),
    "doubled": lambda: Fold(lambda x: torch.cat([x, x], 1)),
    "branching": lambda: Fold(lambda x: x if x.sum() > 0 else -x),
    "detached": lambda: Fold(torch.detach),
    "sorted": lambda: Fold(lambda x: x.sort(-1).values),
    "absolute": lambda: Fold(torch.abs),
    "root": lambda: Fold(torch.sqrt),
    "turned": lambda: Fold(lambda x: x.transpose(-1, -2)),
    "half": lambda: Fold(torch.Tensor.half),
    "whole numbers": lambda: Fold(torch.Tensor.long),
    "complex": lambda: Fold(lambda x: torch.fft.fft(x).real),
    "lost": lambda: Fold(lambda x: None),
    "attention": lambda: Fold(lambda x: F.scaled_dot_product_attention(x, x, x)),
    "recurrent": lambda: nn.LSTM(8, 8),
    "upper": lambda: nn.Upsample(scale_factor=2),
    "padded": lambda: nn.ReflectionPad2d(1),
    "shuffled": lambda: Fold(lambda x: x[torch.randperm(len(x))]),
}


@pytest.mark.filterwarnings("ignore:.*take.? no part", "ignore:Lazy modules")
@cases(
    150,
    names=st.lists(st.sampled_from(sorted(LAYERS)), max_size=5),
    head=st.sampled_from([True, True, True, False]),
    frozen=st.booleans(),
)
def test_networks_of_drawn_layers(names, head, frozen):
    ends = [nn.Flatten(), nn.LazyLinear(10)] if head else []
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = listed(*[LAYERS[name]() for name in names], *ends)
        with contextlib.suppress(Exception):  # lazy layers stay without a shape
            model(SMALL)
        if frozen and len(list(model.parameters())) > 2:
            with contextlib.suppress(ValueError):  # without a shape it cannot be
                next(model.parameters()).requires_grad_(False)
        seen = one_sentence(atslib.observe, model, SMALL, LABELS)
        if seen is not None and "shuffled" not in names:
            assert_observed(model, SMALL, LABELS, seen)
            run = one_sentence(atslib.reconstruct, seen, ATTACK, rng=0)
            assert run is None or run.images.shape == SMALL.shape


# --- files and folders -----------------------------------------------------------------------------------------------


def picture(kind, mode, size):
    """The bytes of an image."""
    stream = io.BytesIO()
    Image.new(mode, size).save(stream, kind)
    return stream.getvalue()


PICTURES = [
    picture("PNG", "RGB", (9, 7)),
    picture("PNG", "I;16", (8, 8)),
    picture("PNG", "1", (1, 1)),
    picture("JPEG", "CMYK", (8, 8)),
    picture("GIF", "P", (5, 8)),
    picture("TIFF", "F", (8, 8)),
    picture("TIFF", "I", (8, 8)),
    picture("BMP", "RGB", (8, 8)),
    picture("WEBP", "RGBA", (8, 8)),
    picture("EPS", "RGB", (8, 8)),
    picture("PPM", "L", (8, 8)),
    picture("ICO", "RGB", (16, 16)),
    b"",
    b"%!PS-Adobe-3.0 EPSF-3.0\n",
    b"<svg/>",
]
DAMAGED = st.builds(
    lambda content, cut, flip: damaged(content, cut, flip),
    st.one_of(st.sampled_from(PICTURES), st.binary(max_size=40)),
    st.one_of(st.none(), st.integers(0, 200)),
    st.one_of(st.none(), st.integers(0, 10**6)),
)


def damaged(content, cut, flip):
    """Bytes that end early, or with a bit flipped."""
    changed = bytearray(content[:cut])
    if flip is not None and changed:
        changed[flip % len(changed)] ^= 1 << flip % 8
    return bytes(changed)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # of what it leaves out of a damaged file
@cases(
    80,
    contents=st.lists(DAMAGED, min_size=4, max_size=4),
    names=st.lists(
        st.sampled_from(["a.png", "b.JPG", "c.gif", "d.tif", "e.txt", "f.eps", ".g.png", "h"]),
        min_size=4,
        max_size=4,
    ),
    size=st.one_of(st.just(8), st.just(8), SCALARS),
)
def test_folders_of_images(tmp_path_factory, contents, names, size):
    folder = tmp_path_factory.mktemp("folder")
    for number, (content, name) in enumerate(zip(contents, names, strict=True)):
        place = folder / "ab"[number % 2]
        place.mkdir(exist_ok=True)
        (place / name).write_bytes(content)
        (place / "z.png").write_bytes(PICTURES[0])
    parts = one_sentence(atslib.load_folder, folder, size=size)
    if parts is not None:
        assert all(part.pixels.shape[2:] == (size, size) for part in parts)
        assert sum(map(len, parts)) <= 6


UPDATE = {"kind": "weights", "lr": 0.1, "steps": 1, "images": [0]}


@cases(80, changed=changes(["kind", "lr", "steps", "images", "by", "record"]), raw=st.booleans())
def test_recorded_updates(tmp_path_factory, changed, raw):
    folder = tmp_path_factory.mktemp("update")
    before = MODEL.state_dict()
    moved = {name: value + 0.001 for name, value in before.items()}
    write_tensors(folder / "sent.safetensors", before, {})
    if raw:  # what was changed is beside the arrays
        facts = {"numbers": {"num-examples": 1}, "records": ["arrays"]}
        told = json.loads(json.dumps(changed, default=str))
        arrays = {f"arrays|{name}": value for name, value in moved.items()}
        facts |= {"numbers": told.get("kind", facts["numbers"])}
        facts |= {"records": told.get("images", facts["records"])}
        write_tensors(folder / "received.safetensors", arrays, facts)
    else:
        write_tensors(folder / "received.safetensors", moved, {})
    said = UPDATE if raw else UPDATE | changed
    (folder / "update.json").write_text(json.dumps(said, default=str))

    def whole():
        given_ = {"number": None, "kind": None, "lr": None, "steps": None}
        found_ = update_files.read(folder, **given_)
        rows = update_files.rows_of(found_, (), 2)
        threat = ThreatModel(batch=len(rows[0]))
        return observed(found_, MODEL, rows, LABELS, threat, (3, 32, 32))

    seen = one_sentence(whole)
    assert seen is None or seen.gradients.isfinite().all()


@cases(
    60,
    name=st.sampled_from(["sent", "client-0000", "federation"]),
    cut=st.integers(0, 3000),
    flip=st.one_of(st.none(), st.integers(0, 10**6)),
    other=st.one_of(st.none(), st.binary(max_size=50)),
)
def test_records_of_a_tap(tmp_path_factory, name, cut, flip, other):
    pytest.importorskip("flwr", reason="the extra atslib[federated] is not installed")
    folder = tmp_path_factory.mktemp("tap")
    federation = Federation(dataset="shapes", model="lenet-2", clients=2, batch=1)
    tap = Tap(folder, federation)
    weights = {name: value.detach() for name, value in tap.network.named_parameters()}
    tap.begin(1, weights)
    tap.record(1, 0, weights, 1)
    ends = "federation.json" if name == "federation" else f"round-00001/{name}.safetensors"
    whole = (folder / ends).read_bytes()
    content = damaged(whole, cut, flip) if other is None else other
    (folder / ends).write_bytes(content)
    seen = one_sentence(lambda: Tap(folder, federation).observed(1, 0))
    if seen is not None:  # a bit of the text that means the same, or none was changed
        assert torch.equal(seen.gradients[0], torch.cat([v.flatten() for v in weights.values()]))


# --- the wire --------------------------------------------------------------------------------------------------------


@cases(
    120,
    array=st.one_of(ARRAYS, TENSORS),
    cut=st.one_of(st.none(), st.integers(0, 300)),
    flip=st.one_of(st.none(), st.integers(0, 2000)),
    other=st.one_of(st.none(), st.binary(max_size=80)),
    name=st.text(max_size=8),
    form=st.sampled_from(["numpy.ndarray", "numpy.ndarray", "pickle", ""]),
)
def test_arrays_of_strangers(array, cut, flip, other, name, form):
    pytest.importorskip("flwr", reason="the extra atslib[federated] is not installed")
    from flwr.app import Array, ArrayRecord

    from atsfed.flower import read

    if isinstance(array, torch.Tensor):
        array = np.ones(
            array.shape, str(array.dtype).removeprefix("torch.").replace("bfloat", "float")
        )
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    content = damaged(stream.getvalue(), cut, flip) if other is None else other
    sent = ArrayRecord({name: Array(str(array.dtype), tuple(array.shape), form, content)})
    got = one_sentence(read, sent, "node 3")
    if got is not None and content == stream.getvalue():
        assert torch.equal(
            got[name].double().nan_to_num(), torch.from_numpy(array.astype(float)).nan_to_num()
        )


# --- the shell -------------------------------------------------------------------------------------------------------

# A program, its options, and others without which it does nothing.
COMMANDS = {
    "search": (
        library.main,
        library.COMMANDS["search"][2:],
        "search --dataset shapes --model lenet-2 --policies 2",
    ),
    "audit": (audit.main, audit.COMMAND[2:], "--model lenet-2 --data shapes"),
}


@cases(
    150,
    command=st.sampled_from(sorted(COMMANDS)).flatmap(
        lambda name: st.tuples(
            st.just(name),
            st.sampled_from([names[0] for names, _ in COMMANDS[name][1] if names[0] != "--out"]),
        )
    ),
    value=st.one_of(
        st.sampled_from([*WORDS, "9" * 5000, "1e9", "٣", "s3://x", "5%", "0-"]), SCALARS
    ),
)
def test_options_of_the_shell(tmp_path_factory, command, value):
    """The place for the result is none, so that nothing is ever computed."""
    name, option = command
    out = tmp_path_factory.mktemp("out") / "file"
    out.touch()
    program, _, needed = COMMANDS[name]
    words = [*needed.split(), "--out", str(out / "below"), f"{option}={value}"]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert program(words) == 2
    assert said.getvalue().startswith("error: ")
    assert said.getvalue().count("\n") == 1


def test_there_are_more_than_two_thousand_cases():
    assert sum(ASKED.values()) > 2000
    few = {name: done for name, done in DONE.items() if done < 0.5 * ASKED[name]}
    assert not few
