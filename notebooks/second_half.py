"""The second half: the main claims once more, on a hundred photographs that nothing in this project has attacked.

All evidence before this was of test images 0-99, with 200-299 for choices, and whoever wrote the rules had seen it.
Here the rule is written first. It takes some six core-hours; the script can be killed at any moment and goes on where
it was:

    nice python notebooks/second_half.py --store FOLDER

The rule, written on 2026-11-26 before any of these attacks existed
--------------------------------------------------------------------------------
*Photographs*: test images 9,488-9,587 of CIFAR-100 and of Fashion-MNIST. *Outcome*: the bits that a reconstruction
tells of the photograph among the 100 test images of its own class, for a server that knows the policy, by the matcher
that `benchmarks/matchers.py` has chosen; beside it the share found, and the gain in dB over the guess of somebody who
was told the draw and sees no gradient. Means and 95 % intervals over photographs, paired. Where weights are drawn
several times, a photograph counts with its mean over the draws, and each draw is shown. Clients crop and flip, also
without a policy.

*The attack* is chosen per network by bits: of `TRIED`, the one with the most on test images 200-299 (the first 32 of
them where an attack is dear) without a policy, at the steps at which it is judged; the first of them in a tie.

*A case can tell* if the bits without a policy have an interval above 0. There the hybrid *protects* if the bits fall
(interval of the change below 0, and p below 5 % after Holm) and the gain over the guess does not rise (its interval is
not above 0). How much it takes of how many bits is said with every verdict. Holm's family is named once: the hybrid in
the eight cases of claims 1 and 3.

- *Claim 1, privacy* (three networks, untrained and after 20 epochs). Reproduced: the hybrid protects in every case
  that can tell. Partly: in some. Not reproduced: in none. Cannot tell: no case can. The other policies are shown.
- *Claim 3, Fashion-MNIST* (two untrained networks): the same.
- *Claim 2, other attacks* (untrained LeNet). One of the paper's six attacks as released works if it can tell; the
  hybrid holds against one that works if it protects there, Holm over those that work. Reproduced: all six work and
  it holds against all. Partly: it holds against more than half of those that work. Not reproduced: at most half.
  Cannot tell: none works.
- *Claim 2, the search* (untrained LeNet). The hybrid that the search found, against no policy and against the mean of
  20 hybrids drawn at random, which are drawn anew. Reproduced: its bits are lower than both (interval below 0, for
  the rivals over rivals and photographs). Partly: than one. Not reproduced: than neither.
- *Claim 5* (three untrained networks, 32 photographs, the attack of that page): the rule of that page, but a network
  can tell if bits can.
- *Claim 7* (untrained LeNet, 64 photographs). Pearson's r between the privacy score of a policy on that network (test
  images 0-63) and its bits, over 100 random policies that are drawn anew; interval over policies and photographs.
  Reproduced: above 0, and it reaches 0.697. Partly: above 0. Not reproduced: it reaches 0 or below. The r with
  PSNR and with the gain are shown.
- *A server that knows more* (LeNet, ConvNet-16, untrained). It matches gradients through the policy and knows the
  policy or is told its draws, in one round or in four. The hybrid *withstands* if the bits, even told, in four rounds,
  stay below those without a policy in one round (interval below 0, Holm over both networks). If the interval lies
  above -0.5 bits, four rounds give them back. What comes out is the image before the policy, and is matched so.

Changed on 2026-11-27, when claim 5's first 32 photographs had been judged: it judges 48, since only 26 and 25 of those
could be compared on the ConvNet.

`atsbook/runs/outcomes.py` has these outcomes. The choice was made on the same day, on other photographs:
`results/attack_choice.csv` has it one by one, committed when six judged attacks had been made. Bits choose
another attack than PSNR did on four of six networks; on the trained ResNet20-1 and ConvNet-16 no attack tells half a bit.
"""

import argparse
import dataclasses
import os
import time
from pathlib import Path

from atsbook.runs.adaptive import FOUND, KEEP, TRIAL
from atsbook.runs.archive import Archive
from atsbook.runs.attacks import AttackUnit, scaled
from atsbook.runs.networks import ModelUnit, Unit
from atsbook.runs.outcomes import OutcomeUnit, outcomes
from atsbook.runs.schedule import compute, say
from atsbook.runs.scoring import ScoreUnit
from atsbook.runs.settings import settings
from atsbook.runs.store import Store
from atsbook.runs.table1 import HYBRID, POLICIES
from atslib import ATTACKS, Attack, ThreatModel, TrainConfig
from atslib.attacks import ThroughPolicy
from atslib.files import project_root
from atslib.policies.policy import sample_authors, sample_functions
from atslib.rng import rng

JUDGED = range(9_488, 9_588)
TRIED = ("adam-cosine", "annealed-lenet", "annealed-resnet", "annealed-convnet")
NETWORKS = ("lenet", "convnet-16", "resnet20-1")
DRAWS = (
    3  # of the weights, of LeNet under every policy, of the others without one and with the hybrid
)
FEW = 32  # photographs of a trial where an attack is dear
COMPARED = 48  # photographs of claim 5
CORRELATED = 64  # photographs behind each of the policies of claim 7
SAMPLED = 100  # policies of claim 7
ROUNDS = (1, 4)

RIVALS = 20  # random hybrids
ITERATES = 51  # of the attacks that claim 5 looks at, and its policies
SEMANTICS = ("", "19-1-18", "3-1-7", HYBRID)
# The paper's six attacks as released, their mended twins, and two stronger relatives
RELEASED = (
    "lbfgs-l2",
    "adam-cosine",
    "lbfgs-cosine",
    "adam-l1",
    "adam-l2",
    "sgd-cosine",
    "lbfgs-l2-fixed",
    "lbfgs-cosine-fixed",
    "sgd-cosine-fixed",
    "adam-cosine-tv",
    "adam-cosine-weak-tv",
    "annealed-lenet",
)


def untrained(name: str, dataset: str = "cifar100", seed: int = 0) -> ModelUnit:
    """A network at the beginning of its training."""
    return ModelUnit(dataset=dataset, model=name, fraction=1.0, train=None, seed=seed)


def trained(name: str, policy: str = "") -> ModelUnit:
    """The network of a client with this policy after 20 epochs of CIFAR-100."""
    return dataclasses.replace(untrained(name), train=TrainConfig(policy=policy, epochs=20))


def steps(model: ModelUnit) -> int:
    """Of an attack on this network: an untrained ConvNet is dear and has converged after 100."""
    return 100 if model.model == "convnet-16" and model.train is None else 300


def attack(
    model: ModelUnit, policy: str, attack: Attack, images: range, **changes: object
) -> AttackUnit:
    """The attack on these photographs after crop, flip and policy; all is drawn by the weights' seed."""
    unit = AttackUnit(
        model=model,
        policy=policy,
        attack=attack,
        first=images.start,
        last=images.stop,
        frames=0,
        seed=model.seed,
    )
    return dataclasses.replace(unit, **changes)


def trials(model: ModelUnit) -> dict[str, AttackUnit]:
    """The attacks from which the strongest on this network is chosen, by preset."""
    images = range(200, 300) if model.model == "lenet" else range(200, 200 + FEW)
    return {
        name: attack(model, "", dataclasses.replace(ATTACKS[name], steps=steps(model)), images)
        for name in TRIED
    }


def told(unit: AttackUnit, store: Store) -> float:
    """Mean bits that a stored attack tells of its photographs."""
    return float(outcomes(OutcomeUnit(attack=unit), store, "cpu")["bits"].mean())


def strongest(model: ModelUnit, store: Store) -> Attack:
    """The attack with the most bits on the network as it is without a policy; its trials are in the store."""
    kept = {name: told(unit, store) for name, unit in trials(model).items()}
    best = max(TRIED, key=kept.get)  # the first in a tie
    listed = ", ".join(f"{name} {value:.2f}" for name, value in kept.items())
    say(f"{model.model}, {'trained' if model.train else 'untrained'}: {best} ({listed} bits)")
    return dataclasses.replace(ATTACKS[best], steps=steps(model))


def claim1(store: Store) -> list[Unit]:
    """Three networks, untrained and trained, without a policy and with the paper's."""
    units = []
    for name in NETWORKS:
        chosen = strongest(untrained(name), store)
        for seed in range(DRAWS):
            policies = POLICIES if name == "lenet" or seed == 0 else ("", HYBRID)
            model = untrained(name, seed=seed)
            units += [attack(model, policy, chosen, JUDGED) for policy in policies]
        chosen = strongest(trained(name), store)
        policies = ("", HYBRID) if name == "convnet-16" else POLICIES
        units += [attack(trained(name, policy), policy, chosen, JUDGED) for policy in policies]
    return units


def claim3(store: Store) -> list[Unit]:
    """Fashion-MNIST, by the attack that is strongest on the network of CIFAR-100."""
    return [
        attack(untrained(name, "fmnist"), policy, strongest(untrained(name), store), JUDGED)
        for name in ("lenet", "convnet-16")
        for policy in POLICIES
    ]


def claim2() -> list[Unit]:
    """All attacks of that page, without a policy and with the hybrid."""
    laptop = settings({"profile": "laptop"})
    return [
        attack(untrained("lenet"), policy, scaled(name, laptop), JUDGED)
        for name in RELEASED
        for policy in ("", HYBRID)
    ]


def search(store: Store) -> list[Unit]:
    """The hybrid that the search found, and as many random ones as on its page, drawn anew."""
    drawn = sample_authors(2 * RIVALS, rng=rng(1, "random hybrids"))
    rivals = [f"{one}+{other}" for one, other in zip(drawn[::2], drawn[1::2], strict=True)]
    chosen = strongest(untrained("lenet"), store)
    return [attack(untrained("lenet"), policy, chosen, JUDGED) for policy in ("", FOUND, *rivals)]


def claim5() -> list[Unit]:
    """As that page attacks, with the iterates that it looks at."""
    presets = {
        "lenet": ("annealed-lenet", 300),
        "convnet-16": ("annealed-convnet", 100),
        "resnet20-1": ("annealed-resnet", 100),
    }
    images = JUDGED[:COMPARED]
    return [
        attack(
            untrained(name),
            policy,
            dataclasses.replace(ATTACKS[preset], steps=count),
            images,
            frames=ITERATES,
        )
        for name, (preset, count) in presets.items()
        for policy in SEMANTICS
    ]


def claim7(store: Store) -> list[Unit]:
    """Random policies drawn anew, their scores and what an attack finds under each."""
    policies = tuple(map(str, sample_functions(SAMPLED, rng=rng(1, "correlation"))))
    model = untrained("lenet")
    chosen = strongest(model, store)
    scores = ScoreUnit(model=model, policies=policies, images=CORRELATED)
    return [scores, *(attack(model, each, chosen, JUDGED[:CORRELATED]) for each in policies)]


def knowing(store: Store) -> list[Unit]:
    """A server that matches gradients through the hybrid, in one round and in four."""
    units = []
    for name in ("lenet", "convnet-16"):
        chosen = strongest(untrained(name), store)
        images = JUDGED if name == "lenet" else JUDGED[:FEW]
        servers = {
            "policy": ThroughPolicy(inner=chosen, trial=min(TRIAL, chosen.steps), keep=KEEP),
            "draws": ThroughPolicy(inner=chosen),
        }
        for rounds in ROUNDS:
            for knows, server in servers.items():
                threat = ThreatModel(defense=knows)
                units.append(
                    attack(untrained(name), HYBRID, server, images, threat=threat, rounds=rounds)
                )
    return units


def with_networks(folder: Path) -> Store:
    """The store of the results, with the trained networks that are in the evidence."""
    store = Store(folder, say=say)
    Archive(project_root() / "results").restore(store, kinds=[ModelUnit.kind])
    return store


def choices() -> list[Unit]:
    """All trials, of the cheapest network first."""
    models = [make(name) for make in (untrained, trained) for name in NETWORKS]
    return [unit for model in models for unit in trials(model).values()]


def queue(store: Store) -> list[Unit]:
    """Everything that is judged, in the order in which it is computed; the trials are in the store."""
    attacks = [
        *claim1(store),
        *search(store),
        *claim7(store),
        *knowing(store),
        *claim3(store),
        *claim2(),
        *claim5(),
    ]
    units: list[Unit] = []
    for unit in dict.fromkeys(attacks):
        units += [unit, OutcomeUnit(attack=unit)] if isinstance(unit, AttackUnit) else [unit]
    return units


def main() -> None:
    """Choose the attacks, then compute what is missing, until it is done or the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--store", type=Path, required=True, help="folder of results and of what is half done"
    )
    parser.add_argument("--hours", type=float, help="pause after so long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    ends = None if options.hours is None else time.monotonic() + 3600 * options.hours
    store = with_networks(options.store)
    compute(choices(), store, device="cpu", jobs=options.jobs, ends=ends)
    compute(queue(store), store, device="cpu", jobs=options.jobs, ends=ends)


if __name__ == "__main__":
    main()
