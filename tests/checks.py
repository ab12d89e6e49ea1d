"""What tests of several files need: refusals, kills, files in memory, damage, a plain backward
pass.
"""

import base64
import dataclasses
import io
import json
import random
import re
import socket
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from atsbook.__main__ import COMMANDS as BOOK_COMMANDS
from atsbook.__main__ import main as book
from atsbook.experiment import AttackRequest
from atsbook.findings.result import FILE, NUMBERS
from atsbook.networks import ModelRequest
from atsbook.requests.scoring import SearchRequest, unseen
from atslib.__main__ import main as library
from atslib.attacks import ATTACKS, GradientMatching
from atslib.clients.training import TrainConfig
from atslib.data.load import available
from atslib.errors import AtsError
from atslib.scores.search import SearchConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of networks, attacks, scores and searches that take no time; "initial" is the regime of an
    untrained network.
    """

    dataset: str = "shapes"
    model: str = "convnet-4"
    regime: str = "trained"
    fraction: float = 0.04
    epochs: int = 1
    attack: str = "adam-cosine"
    images: int = 2
    steps: int = 10
    crop_flip: bool = True
    semi_fraction: float = 0.04
    candidates: int = 8
    score_images: int = 3
    score_points: int = 4
    seed: int = 0


# Two images and two steps, of networks that see a five-hundredth of the embedded images.
TINY = Sizes(model="lenet", images=2, steps=2, fraction=0.002, semi_fraction=0.002, candidates=2)


class Killed(BaseException):
    """What a kill looks like from inside."""


@contextmanager
def refused(*parts):
    """What is done within ends in an `AtsError`: one line that holds all of these parts."""
    with pytest.raises(AtsError) as error:
        yield error
    said = str(error.value)
    assert all(part in said for part in parts), said
    assert "\n" not in said, said


def model_request(sizes, policy="", **changes):
    """A network of these sizes, trained with `policy`; `changes` replace fields."""
    request = ModelRequest(
        dataset=sizes.dataset,
        model=sizes.model,
        fraction=sizes.fraction,
        train=TrainConfig(policy=policy, epochs=sizes.epochs),
        seed=sizes.seed,
    )
    return dataclasses.replace(request, **changes)


def attack_request(sizes, policy="", **changes):
    """An attack of these sizes on images transformed by `policy`, against the network of their
    regime; `changes` replace fields.
    """
    attack = ATTACKS[sizes.attack]
    if isinstance(attack, GradientMatching):
        attack = dataclasses.replace(attack, steps=sizes.steps)
    model = model_request(sizes, policy)
    if sizes.regime != "trained":
        model = model_request(sizes, train=None, fraction=1.0)
    request = AttackRequest(
        model=model,
        policy=policy,
        attack=attack,
        first=0,
        last=sizes.images,
        crop_flip=sizes.crop_flip,
        frames=0,
        seed=sizes.seed,
    )
    return dataclasses.replace(request, **changes)


def semi_trained(sizes):
    """The network that privacy scores are computed on."""
    return model_request(sizes, fraction=sizes.semi_fraction)


def search_request(sizes):
    """A small search of candidates as the authors draw them."""
    config = SearchConfig(
        candidates=sizes.candidates,
        sampler="authors",
        keep=min(10, sizes.candidates),
        images=sizes.score_images,
        points=sizes.score_points,
        acc_images=min(8, len(unseen(sizes.dataset))),
        acc_variant="fixed",
        shard=16,
    )
    return SearchRequest(model=semi_trained(sizes), config=config, seed=sizes.seed)


def needs(name):
    """A test of something that counts this data set's images; skipped where it is not here."""
    here = all(available(name, split) for split in ("train", "test"))
    skip = pytest.mark.skipif(not here, reason=f"{name} is not here")
    return lambda test: pytest.mark.data(skip(test))


def written(save, *what, **how):
    """The bytes that this function writes to a file."""
    buffer = io.BytesIO()
    save(buffer, *what, **how)
    return buffer.getvalue()


def assert_asks_for_nothing(html):
    """Two whole scripts, and no address that a browser would fetch."""
    assert html.count("<script") == html.count("</script>") == 2
    assert (
        re.findall(
            r"""(?:src|href)=["'](?!data:)[^"']*|url\([^)]*|@import|\bfetch\(|\bimport\(""", html
        )
        == []
    )
    assert set(re.findall(r"https?://[^\"'\s]+", html)) == {
        "http://www.w3.org/2000/svg"
    }  # a name, not a request


def flip_a_bit(path, at=-5):
    """Damage a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def plain_gradient(model, images, labels):
    """The gradient of the mean loss of these images by one plain backward pass, flattened;
    differentiable once more.
    """
    loss = F.cross_entropy(model(images), labels)
    return torch.cat(
        [
            g.flatten()
            for g in torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        ]
    )


def main(arguments):
    """`python -m atsbook` for its commands, `python -m atslib` for all others."""
    program = book if arguments and arguments[0] in BOOK_COMMANDS else library
    return program(arguments)


def free_port():
    """A port of 127.0.0.1 that nobody listens on, below those that systems take for connections that go out."""
    for port in random.SystemRandom().sample(range(20000, 32768), k=100):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:  # somebody listens there
            continue
        return port
    raise AssertionError("none of 100 ports is free")


def pictures(payload, name):
    """The pictures of one image sheet, (R, N, C, H, W) uint8; the inverse of `figures.sheets.sheet`."""
    return pictures_of(payload["files"][name], payload["size"])


def pictures_of(uri, size):
    """The same of a sheet by its address."""
    channels, height, width = size
    data = base64.b64decode(uri.split(",", 1)[1])
    grey = torch.from_numpy(np.array(Image.open(io.BytesIO(data)).convert("L")))
    rows = grey.shape[0] // (channels * height)
    columns = grey.shape[1] // width
    return grey.reshape(channels, rows, height, columns, width).permute(1, 3, 0, 2, 4).contiguous()


def exports(results, page, numbers, dataset="cifar100"):
    """A page's numbers of a run on real data at profile laptop."""
    folder = results / page / f"{dataset}-laptop"
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"dataset": dataset, "profile": "laptop"}
    (folder / FILE).write_text(json.dumps({"verdict": {}, "facts": facts}))
    (folder / NUMBERS).write_text(json.dumps(numbers))
