"""The page on Inverting Gradients: its requests against plain computations, and the rules in its
notebook on made-up tables.
"""

import ast
import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from checks import needs
from test_pilots import cell, cells

from atsbook.evidence.archive import request_of
from atsbook.experiment import AttackRequest, ranks
from atsbook.findings import compare
from atsbook.findings.statistics import ENOUGH, interval, paired, share_interval
from atsbook.findings.verdicts import MARGIN, does_not_matter
from atsbook.networks import ModelRequest, dataset, network, trained
from atsbook.requests.batches import Batches, at_random
from atsbook.requests.gradients import (
    FeatureRequest,
    ShiftsRequest,
    StagesRequest,
)
from atslib.attacks import ATTACKS
from atslib.checkpoints import plain
from atslib.clients.prepare import to_images
from atslib.clients.training import TrainConfig
from atslib.rng import rng

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
PAGE = "ext8_inverting_gradients"
LENET = dataclasses.replace(ATTACKS["annealed-lenet"], steps=200)
MODEL = ModelRequest(dataset="shapes", model="lenet-4", fraction=0.02, train=None, seed=0)


def notebook(*words):
    """What the notebook's cells with these words define: functions and plain constants."""
    space = {"np": np, "pd": pd, "compare": compare, "dataclasses": dataclasses}
    space |= {"interval": interval, "paired": paired, "share_interval": share_interval}
    space |= {"ENOUGH": ENOUGH, "MARGIN": MARGIN, "does_not_matter": does_not_matter}
    space |= {"KEYS": ["where", "what"], "replace": dataclasses.replace}
    for each in words:
        define(cell(PAGE, each), space)
    return space


def define(source, space):
    """Run the definitions of a cell, and none of its calls."""
    for node in ast.parse(source).body:
        named = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        constant = named and node.targets[0].id.isupper()
        if isinstance(node, ast.FunctionDef) or constant:
            exec(ast.unparse(node), space)


# --- requests ---------------------------------------------------------------------------------------------------


def test_every_restart_is_looked_at_and_the_one_of_least_cost_is_the_attacks(store):
    attack = dataclasses.replace(LENET, steps=3, restarts=3)
    request = AttackRequest(
        model=MODEL, policy="", attack=attack, first=0, last=2, frames=0, every=True
    )
    made = request.make(store, CPU)
    assert made["psnr_each"].shape == made["rank_each"].shape == made["cost_each"].shape == (3, 2)
    best = made["cost_each"].argmin(0)
    for name in ("psnr", "cost"):
        torch.testing.assert_close(made[f"{name}_each"][best, range(2)], made[name])
    assert torch.equal(
        made["rank_each"][best, range(2)], ranks(request, made["reconstruction"])["rank_target"]
    )
    assert request_of({"kind": request.kind, "version": 1, "config": plain(request)}) == request


def test_sums_of_squares_of_directions_are_those_of_a_plain_decomposition(store, tmp_path):
    train = TrainConfig(epochs=1, batch=8)
    request = StagesRequest(model=dataclasses.replace(MODEL, train=train), steps=(1, 2), images=5)
    made = request.make(store, CPU)
    few = dataset("shapes", "test")[:5]
    rows = []
    for model in (trained(m, store, CPU)[0] for m in request.models):
        for image, label in zip(to_images(few.pixels), few.labels, strict=True):
            loss = F.cross_entropy(model(image[None]), label[None])
            rows.append(
                torch.cat(
                    [g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]
                )
            )
    gradients = torch.stack(rows).view(4, 5, -1).detach().double()
    torch.testing.assert_close(made["norm"].double(), gradients.norm(dim=2), rtol=1e-4, atol=1e-8)
    u = F.normalize(gradients, dim=2)
    mean = u.mean((0, 1))
    for name, expected in (
        ("direction_all", (u - mean).square().sum((0, 2))),
        ("direction_image", 4 * (u.mean(0) - mean).square().sum(1)),
        ("direction_stage", 5 * (u.mean(1) - mean).square().sum()),
        ("same_stage", torch.stack([(s @ s.T).sum() - 5 for s in u]) / 20),
        ("same_image", torch.einsum("snp,tnp->st", u, u) / 5),
    ):
        torch.testing.assert_close(made[name].double(), expected, rtol=1e-3, atol=1e-5)
    sums = notebook("def sums_of_squares(")["sums_of_squares"](made)
    assert sums.groupby("of").size().to_dict() == {"length": 5, "direction": 5}
    for _, table in sums.groupby("of"):  # what stage and image explain is no more than all
        assert (table[["image_sum", "stage_sum"]].sum().sum()) <= table["all"].sum() * (1 + 1e-6)
    assert request_of({"kind": request.kind, "version": 1, "config": plain(request)}) == request


def test_features_are_read_off_exactly_from_one_image_and_mixed_from_several(store):
    one = FeatureRequest(model=MODEL, batches=Batches(size=1, count=4), policy="3-1-7")
    made = one.make(store, CPU)
    assert (made["error"] < 1e-4).all()
    assert (made["error"] < made["error_mean"]).all()
    assert made["rank_target"].tolist() == [1] * 4
    assert made["rank_original"].shape == (4,)
    several = dataclasses.replace(one, batches=Batches(size=4, count=2)).make(store, CPU)
    assert several["error"].median() > 1e-3
    assert request_of({"kind": one.kind, "version": 1, "config": plain(one)}) == one


def test_a_shifted_reconstruction_is_found_by_who_tries_all_shifts(store, monkeypatch):
    attack = dataclasses.replace(LENET, steps=2)
    request = AttackRequest(model=MODEL, policy="", attack=attack, first=0, last=3, frames=0)
    artifact = request.make(store, CPU)
    artifact.tensors["reconstruction"].copy_(to_images(artifact["target"]).roll((9, 11), (2, 3)))
    monkeypatch.setattr(AttackRequest, "make", lambda *_: artifact)
    rolled = ShiftsRequest.of(request).compute(store, CPU, None)
    assert rolled["rank_rolled"].tolist() == [1] * 3
    assert (rolled["psnr_rolled"] > 60).all()


def test_assigned_at_random_is_the_mean_over_all_pairs_in_the_long_run():
    made, truth = (torch.rand(2, 3, 3, 4, 4, generator=rng(i)) for i in range(2))
    drawn = at_random(made, truth, times=4_000)["psnr_random"]
    pairs = [
        [-10 * torch.log10((a - b).square().mean()) for b in truth.flatten(0, 1)]
        for a in made.flatten(0, 1)
    ]
    assert drawn.shape == (1, 4_000)
    assert drawn.mean().item() == pytest.approx(np.mean(pairs), abs=0.05)


# --- what the notebook asks for ------------------------------------------------------------------------------


@needs("cifar100")
def test_paddings_share_their_weights():
    for name in ("lenet", "resnet20-1"):
        requests = [
            ModelRequest(dataset="cifar100", model=model, fraction=1.0, train=None, seed=0)
            for model in (name, f"{name}-circular")
        ]
        plain_net, padded = (network(request) for request in requests)
        assert all(
            torch.equal(a, b)
            for a, b in zip(plain_net.parameters(), padded.parameters(), strict=True)
        )


def test_every_optimizer_computes_as_many_gradients():
    space = notebook("def with_budget(", "OPTIMIZERS = {")
    attacks = [space["with_budget"](LENET, 200, **how) for how in space["OPTIMIZERS"].values()]
    assert {attack.evaluations for attack in attacks} == {200}
    assert len(set(attacks)) == 4


def test_what_is_looked_for_in_an_attack_is_described_as_it_is():
    attack = dataclasses.replace(LENET, steps=2)
    request = AttackRequest(model=MODEL, policy="", attack=attack, first=0, last=3, seed=7)
    shifts = ShiftsRequest.of(request)
    assert shifts.attack_request == request
    assert plain(shifts) == plain(request)
    assert (shifts.kind, request.kind) == ("rolled", "attack")
    assert shifts.needs[-1] == request


# --- rules ---------------------------------------------------------------------------------------------------

WAVE = 0.3 * np.sin(np.arange(32))


def attacks(line, where, means, **columns):
    """One row per image and attack: gains around these means."""
    parts = []
    for i, (what, mean) in enumerate(means.items()):
        gain = mean + np.roll(WAVE, 3 * i)
        row = {
            "line": line,
            "where": where,
            "what": what,
            "image": range(32),
            "gain": gain,
            "psnr": 12 + gain,
        }
        parts.append(pd.DataFrame(row | {"rank_target": 50} | columns))
    return pd.concat(parts)


RULES = [each.source for each in cells(PAGE) if "rule" in each.metadata.get("tags", [])]
SPACE = notebook()
for source in RULES:
    define(source, SPACE)
# line → the function that judges it, and the tables that it takes
JUDGES = {
    "C1": ("judge_direction", "stages"),
    "C2": ("judge_cosine", "attacks"),
    "O3": ("judge_comparisons", "attacks"),
    "O4": ("judge_restarts", "each"),
    "C3": ("judge_optimizers", "attacks"),
    "C4": ("judge_trained", "attacks"),
    "C5": ("judge_depth", "attacks"),
    "C6": ("judge_width", "each"),
    "C7": ("judge_padding", "attacks"),
    "C8": ("judge_local_steps", "batches"),
    "C9": ("judge_hundred", "batches"),
    "O2": ("judge_batches", "batches"),
    "O1": ("judge_linear", "attacks", "features"),
}


def judged(name, **tables):
    judge, *wanted = JUDGES[name]
    return SPACE[judge](*(tables[table] for table in wanted))[0]


def test_every_line_is_judged_by_its_own_function():
    source = "\n".join(RULES)
    for name, (judge, *_) in JUDGES.items():
        assert source.count(f'"{name}"') == 1
        assert source.count(f"def {judge}(") == 1
        assert source.count(f"{judge}(") == 2


def test_a_line_that_was_not_run_or_on_few_images_cannot_be_told():
    empty = pd.DataFrame({"line": [], "where": [], "what": [], "image": []})
    for name in JUDGES:
        tables = dict.fromkeys(("attacks", "each", "batches", "stages", "features"), empty)
        assert judged(name, **tables) == "cannot tell"
    few = attacks("C2", "LeNet, initial", {"cosine": 3, "L2": 1})
    assert judged("C2", attacks=few[few["image"] < 29]) == "cannot tell"


@pytest.mark.parametrize("name", JUDGES)
def test_a_column_that_is_missing_is_an_error_and_no_verdict(name):
    """Enough images of the line are in every table, and what it is judged by is in none."""
    parts = [
        pd.DataFrame({"line": name, "where": where, "what": what, "image": range(40), "size": 1})
        for where in ("ResNet, initial", "lenet", "resnet20-1")
        for what in (8, 16)
    ]
    rows = pd.concat(parts)
    tables = dict.fromkeys(("attacks", "each", "batches", "features", "stages"), rows)
    with pytest.raises((KeyError, ValueError)):
        judged(name, **tables)


@pytest.mark.parametrize(("length", "direction"), list(itertools.product([True, False], repeat=2)))
def test_c1(length, direction):
    parts = []
    for of, image in (("length", not length), ("direction", direction)):
        small, large = 1 + WAVE, 5 + WAVE
        rows = {
            "image_sum": large if image else small,
            "stage_sum": 1.0 if image else 5.0,
            "all": 10.0,
        }
        parts.append(pd.DataFrame(rows).assign(of=of))
    status = {2: "reproduced", 1: "partly", 0: "not reproduced"}[length + direction]
    assert judged("C1", stages=pd.concat(parts)) == status


def distances(first, later):
    """Gains of cosine and L2 on the untrained and the trained ResNet."""
    places = ("ResNet20-1, initial", "ResNet20-1, trained")
    gains = [dict(zip(("cosine", "L2"), pair, strict=True)) for pair in (first, later)]
    return pd.concat(
        [attacks("C2", place, each) for place, each in zip(places, gains, strict=True)]
    )


def test_c2_and_o3():
    assert judged("C2", attacks=distances((3, 2), (3, 0))) == "reproduced"
    assert (
        judged("C2", attacks=distances((3, 2), (3, 2))) == "partly"
    )  # ahead, and no more so on the trained one
    assert judged("C2", attacks=distances((2, 3), (2, 3))) == "not reproduced"
    assert judged("C2", attacks=distances((-1, -3), (-1, -3))) == "cannot tell"
    assert judged("O3", attacks=distances((3, 2), (-1, -3))) == "reproduced"
    assert judged("O3", attacks=distances((3, 2), (3, 1))) == "not reproduced"


def restarted(*gains):
    """Two restarts of each attack, the second better by its cost; PSNR higher by these."""
    parts = []
    for what, gain in zip("ab", gains, strict=True):
        for restart, more in ((0, 0.0), (1, gain)):
            row = {
                "line": "O4",
                "where": "here",
                "what": what,
                "restart": restart,
                "image": range(32),
                "cost": 1.0 - restart,
            }
            parts.append(pd.DataFrame(row | {"psnr": 12 + more + WAVE * (1 + 0.1 * restart)}))
    return pd.concat(parts)


def test_o4():
    assert judged("O4", each=restarted(2, 3)) == "reproduced"
    assert judged("O4", each=restarted(2, 0)) == "partly"
    assert judged("O4", each=restarted(0.1, 0)) == "not reproduced"
    assert judged("O4", each=restarted(0.5, 0)) == "cannot tell"


def test_c3():
    def optimizers(*best):
        means = {"Adam, signed": 2, "Adam": 1, "SGD": 1}
        return pd.concat(
            [attacks("C3", f"place {i}", means | {"SGD": b}) for i, b in enumerate(best)]
        )

    assert judged("C3", attacks=optimizers(1, 1)) == "reproduced"
    assert judged("C3", attacks=optimizers(3, 3)) == "not reproduced"
    assert judged("C3", attacks=optimizers(1, 3)) == "partly"


def test_c4():
    def stages(end, rank=50):
        return pd.concat(
            [
                attacks("C4", net, {0: 4, 100: e}, rank_target=rank)
                for net, e in zip("ab", end, strict=True)
            ]
        )

    assert judged("C4", attacks=stages((1, 1))) == "reproduced"
    assert judged("C4", attacks=stages((1, -1))) == "partly"
    assert judged("C4", attacks=stages((-1, -1), rank=1)) == "partly"
    assert judged("C4", attacks=stages((-1, -1))) == "not reproduced"


def test_c5():
    def depths(*gains):
        return attacks(
            "C5",
            "16 wide",
            dict(zip(("resnet18", "resnet34", "resnet152"), (2, *gains), strict=True)),
        )

    assert judged("C5", attacks=depths(2.1, 1.9)) == "reproduced"
    assert judged("C5", attacks=depths(1, 0)) == "not reproduced"
    assert judged("C5", attacks=depths(2, 0)) == "partly"
    assert judged("C5", attacks=depths(2.45, 1.55)) == "cannot tell"


def test_c6():
    def widths(narrow, wide):
        parts = []
        for what, spread in ((16, narrow), (64, wide)):
            for restart, side in enumerate((-1, -0.3, 0.3, 1)):
                psnr = 12 + side * (spread + 0.1 * WAVE * (1 + (what == 64)))
                row = {
                    "line": "C6",
                    "where": "net",
                    "what": what,
                    "restart": restart,
                    "image": range(32),
                    "psnr": psnr,
                }
                parts.append(pd.DataFrame(row))
        return pd.concat(parts)

    assert judged("C6", each=widths(1, 2)) == "reproduced"
    assert judged("C6", each=widths(2, 1)) == "not reproduced"
    assert judged("C6", each=widths(1, 1)) == "cannot tell"


def test_c7():
    def pads(zeros, unpadded, circular):
        small = attacks("C7", "lenet", {"zeros": zeros, "unpadded": unpadded})
        return pd.concat([small, attacks("C7", "resnet20-1", {"zeros": 2, "circular": circular})])

    assert judged("C7", attacks=pads(1, 3, 1)) == "reproduced"
    assert judged("C7", attacks=pads(1, 3, 3)) == "partly"
    assert judged("C7", attacks=pads(3, 1, 3)) == "not reproduced"


def shared(line, size, name, value, group, **columns):
    """Images of batches: a PSNR or a rank for all."""
    count = 40 if group > 1 else 100
    row = {
        "line": line,
        "where": size,
        "what": name,
        "image": range(count),
        "group": [i // group for i in range(count)],
    }
    wave = 0.1 * np.sin(np.arange(count))
    return pd.DataFrame(row | {"psnr": value + wave} | columns)


def test_c8():
    def steps(*later):
        parts = []
        for size, end in zip((1, 8), later, strict=True):
            parts += [
                shared("C8", size, "1 step", 15, size),
                shared("C8", size, "20 steps, unrolled", end, size),
            ]
        return pd.concat(parts)

    assert judged("C8", batches=steps(15, 16)) == "reproduced"
    assert judged("C8", batches=steps(12, 12)) == "not reproduced"
    assert judged("C8", batches=steps(15, 12)) == "partly"


def found(line, share, where, size):
    """A hundred images, of which this share is singled out."""
    return shared(line, where, size, 12, 1, rank=np.where(np.arange(100) < 100 * share, 1, 50))


def test_c9():
    for status, shares in {
        "reproduced": (0.2, 0.2),
        "partly": (0.2, 0.01),
        "not reproduced": (0.01, 0.01),
    }.items():
        rows = pd.concat([found("C9", s, net, 100) for s, net in zip(shares, "ab", strict=True)])
        assert judged("C9", batches=rows) == status


def test_o2():
    for status, share in {"not reproduced": 0.8, "reproduced": 0.1, "cannot tell": 0.45}.items():
        rows = pd.concat([found("O2", 0.9, "a", 1), found("O2", share, "a", 100)])
        assert judged("O2", batches=rows) == status


def test_o1():
    def read(error, gain):
        features = pd.DataFrame(
            {"size": [1, 1, 4], "where": ["a", "b", "a"], "error": [1e-7, error, 0.5]}
        )
        features["rank_target"] = 1
        return {"features": features, "attacks": attacks("O1", "a", {"": gain})}

    assert judged("O1", **read(1e-6, 1)) == "reproduced"
    assert judged("O1", **read(1e-6, -1)) == "partly"
    assert judged("O1", **read(0.1, -1)) == "not reproduced"


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        (("reproduced",), "reproduced"),
        (("not reproduced",), "not reproduced"),
        (("reproduced", "not reproduced"), "partly"),
        (("reproduced", "cannot tell"), "partly"),
        (("cannot tell", "reproduced"), "cannot tell"),
    ],
)
def test_the_page_as_a_whole(statuses, status):
    names = [f"C{number}" for number in range(1, 10)]
    rows = list(zip(names, itertools.cycle(statuses)))
    rows.append(("O1", "cannot tell"))  # an objection does not count
    assert SPACE["judge"](pd.DataFrame(rows, columns=["line", "status"]))[0] == status
