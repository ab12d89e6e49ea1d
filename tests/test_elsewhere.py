"""Everything that computes, on a device that is not the CPU: nothing is left behind on the CPU, and the
results are the CPU's. There is no GPU here; see `elsewhere`.
"""

import dataclasses
from pathlib import Path

import pytest
import torch
from elsewhere import PLACE, LeftBehind, There, elsewhere, moved

import atslib
from atslib import ATTACKS, LocalTraining, ThreatModel, TrainConfig
from atslib.attacks import LastLayerAlone, ThroughPolicy, Undone
from atslib.attacks.line_up import line_up_each
from atslib.clients.training import fit
from atslib.clients.updates import observe_weights
from atslib.measures.found import bits, rank
from atslib.policies.policy import parse_policy

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
HYBRID = "3-1-7+43-18-18"
TEST = atslib.load("shapes", "test")


def short(name, steps=3, **settings):
    return dataclasses.replace(ATTACKS[name], steps=steps, restarts=1, **settings)


def network(name, place):
    made = atslib.build_model(name, TEST.num_classes, norm="shapes", rng=atslib.rng(0))
    return moved(made, place)


def clients(place, count=3):
    return (TEST.pixels[:count] / 255).to(place), TEST.labels[:count].to(place)


def attacked(name, attack, count=3, **options):
    """A function of a place: what an attack makes of gradients there."""

    def run(place):
        seen = atslib.observe(network(name, place), *clients(place, count), rng=1, **options)
        made = atslib.reconstruct(seen, attack, rng=2)
        return [made.images, made.cost]

    return run


def local(place):
    model = network("lenet", place)
    training = LocalTraining(epochs=2, lr=0.1, momentum=0.9)
    threat = ThreatModel(batch=2)
    seen = observe_weights(model, *clients(place, 4), local=training, rng=1, threat=threat)
    return [atslib.reconstruct(seen, short("annealed-lenet", unroll=True), rng=1).images]


def lined_up(name, policy="", count=3, **options):
    def run(place):
        candidates, _ = atslib.own_class(TEST.labels, range(count))
        seen = atslib.observe(network(name, place), *clients(place, count), **options)
        found = atslib.line_up(
            seen,
            TEST.pixels.to(place),
            candidates.to(place),
            parse_policy(policy),
            crop_flip=False,
        )
        return [found.distances, found.guess]

    return run


def lined_up_once(place):
    candidates, _ = atslib.own_class(TEST.labels, range(3))
    model = network("lenet", place)
    seen = [atslib.observe(model, *clients(place), defense=d, rng=1) for d in ("", "prune:0.5")]
    found = line_up_each(seen, TEST.pixels.to(place), candidates.to(place), crop_flip=False)
    return [each.distances for each in found]


def readme(place):
    """README's example, with the candidates' labels where `load` puts them."""
    policy = parse_policy(HYBRID)
    candidates, own = atslib.own_class(TEST.labels, range(3), photographs=TEST.pixels)
    private = policy(TEST.pixels[:3].to(place), rng=atslib.rng(1)) / 255
    seen = atslib.observe(network("lenet", place), private, TEST.labels[:3].to(place))
    result = atslib.reconstruct(seen, short("annealed-lenet"), rng=2)
    alike = atslib.match(result.images, TEST.pixels, candidates, policy, crop_flip=False)
    found = [atslib.found(alike, own), rank(alike, own), bits(alike, own)]
    return [*found, atslib.psnr(result.images, TEST.pixels[:3] / 255)]


def trained(defense=None, **settings):
    def run(place):
        model = network("resnet20-1", place)
        config = TrainConfig(epochs=1, **settings)
        fit(model, TEST[:48], config, rng=atslib.rng(0), defense=defense, test=TEST[48:64])
        return [each.detach() for each in model.parameters()]

    return run


def scored(place):
    images = dataclasses.replace(
        TEST[:4], pixels=TEST.pixels[:4].to(place), labels=TEST.labels[:4].to(place)
    )
    return [atslib.privacy_score(network("lenet", place), images, parse_policy("3-1-7"), rng=0)]


OWN = TEST[100:140]
CASES = {
    "Adam": attacked("lenet", short("annealed-lenet")),
    "Adam, signed, four starts": attacked(
        "convnet-4", dataclasses.replace(ATTACKS["adam-cosine"], steps=3, restarts=4)
    ),
    "batch normalization": attacked("resnet20-1", short("annealed-resnet")),
    "its own statistics, labels restored": attacked(
        "resnet20-1",
        short("annealed-resnet"),
        4,
        threat=ThreatModel(batch=2, labels="restored", victim="train"),
    ),
    "labels optimized": attacked(
        "lenet", short("annealed-lenet"), threat=ThreatModel(labels="optimized")
    ),
    "L-BFGS, once": attacked("lenet", short("fast-lenet")),
    "L-BFGS": attacked("lenet", short("lbfgs-l2-fixed")),
    "layer by layer": attacked("convnet-4", short("annealed-resnet", distance="cosine-layers")),
    "the last layer alone": attacked("convnet-4", LastLayerAlone(inner=short("annealed-convnet"))),
    "a policy that is known": attacked(
        "lenet",
        ThroughPolicy(inner=short("annealed-lenet")),
        defense=HYBRID,
        threat=ThreatModel(defense="policy"),
    ),
    "draws that are known": attacked(
        "lenet",
        ThroughPolicy(inner=short("annealed-lenet")),
        defense=HYBRID,
        threat=ThreatModel(defense="draws"),
    ),
    "a policy that is undone": attacked(
        "lenet",
        Undone(inner=short("annealed-lenet"), images=OWN, crop_flip=False, steps=3),
        defense="3-1-7",
        threat=ThreatModel(defense="policy"),
    ),
    "a defense": attacked(
        "lenet", short("annealed-lenet"), defense="clip:1 | gaussian:0.01 | prune:0.5"
    ),
    "Soteria": attacked("lenet", short("annealed-lenet"), defense="soteria:0.4"),
    "local training": local,
    "the line-up by features": lined_up("resnet20-1", HYBRID),
    "the line-up by gradients": lined_up("lenet", "3-1-7", 4, threat=ThreatModel(batch=2)),
    "the line-up of several gradients": lined_up_once,
    "README's example": readme,
    "training behind a policy": trained(policy=HYBRID),
    "training in half precision": trained(mixed_precision=True, schedule="onecycle", lr=0.1),
    "training with noise": trained(defense="clip:1 | gaussian:0.01"),
    "the privacy score": scored,
}


@pytest.mark.filterwarnings("ignore:.*is at most")
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_left_behind_and_the_results_are_the_cpus(name, monkeypatch):
    here = CASES[name](torch.device("cpu"))
    with elsewhere(monkeypatch):
        there = [each.to("cpu") for each in CASES[name](PLACE)]
    for own, other in zip(here, there, strict=True):
        torch.testing.assert_close(other, own, rtol=1e-3, atol=1e-3, equal_nan=True)


def test_what_is_left_behind_is_found(monkeypatch):
    with elsewhere(monkeypatch):
        there = torch.ones(3, device=PLACE)
        assert isinstance(there, There)
        assert (there + 1).tolist() == [2, 2, 2]
        assert there[[0, 2]].tolist() == [1, 1]
        assert there[torch.tensor([1])].tolist() == [1]  # as torch takes indices
        for wrong in (
            lambda: there + torch.ones(3),
            lambda: torch.cat([there, torch.ones(1)]),
            lambda: torch.ones(3)[torch.tensor([0]).to(PLACE)],
            lambda: torch.stack([there, torch.ones(3)]),
        ):
            with pytest.raises(LeftBehind):
                wrong()
        with pytest.raises(TypeError, match=r"use \.cpu"):
            there.numpy()
        slope = torch.ones(2, device=PLACE, requires_grad=True)
        (slope.square().sum()).backward()
        assert slope.grad.tolist() == [2, 2]


def test_requests_are_made_on_another_device(tmp_path: Path, monkeypatch):
    from atsbook.runs.study import Study
    from atsbook.store import Store

    study = Study("smoke", store=tmp_path / "plan")
    untrained = study.network("lenet")
    small = study.network("convnet-2", train=TrainConfig(epochs=1, policy="3-1-7"), fraction=0.002)
    run = study.attack(untrained, policy=HYBRID, attack="annealed-lenet", steps=3, images=range(3))
    handles = [
        run,
        study.attack(small, attack="annealed-convnet", steps=3, images=range(2)),
        study.outcomes(run),
        study.found(run),
        study.scores(small, ["3-1-7", ""], images=2),
    ]

    def made(name, device):
        store = Store(tmp_path / name)
        return [handle.request.make(store, device).tensors for handle in handles]

    here = made("here", torch.device("cpu"))
    with elsewhere(monkeypatch):
        there = made("there", PLACE)
    for own, other in zip(here, there, strict=True):
        assert own.keys() == other.keys()
        for name, value in own.items():
            torch.testing.assert_close(
                other[name].cpu(), value, rtol=1e-3, atol=2e-3, equal_nan=True
            )


def test_an_audit_is_made_on_another_device(monkeypatch):
    import atsaudit

    images = TEST[:120]

    def audited(place):
        model = network("lenet", place)
        report = atsaudit.audit(
            model, images, untrained=model, batch=(1, 2), attacked=4, steps=2, policy="3-1-7"
        )
        return report.rows, report.named_rows

    here = audited(torch.device("cpu"))
    with elsewhere(monkeypatch):
        there = audited(PLACE)
    assert [row.found for row in there[0]] == [row.found for row in here[0]]
    assert [row.named for row in there[1]] == [row.named for row in here[1]]
