"""The attack that is best behind a policy, chosen on photographs that are judged nowhere."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd

from atsbook.runs.study import Handle, Study
from atslib import ATTACKS, GradientMatching

DRAW = 100  # of weights, crop, flip, policy and start, which no judged attack has
TIE = 0.05  # bits, within which the shorter attack is taken


@dataclasses.dataclass(frozen=True)
class Choice:
    """Among what, and on which photographs, an attack is chosen.

    Attributes:
        variation: weights of total variation that are tried.
        steps: numbers of steps, the fewer first.
        quick: test images of the first selection.
        on: test images of the second.
        kept: how many stay after the first.
        longest: whether the paper's own attack is tried on a LeNet, in its 4,800 steps.
    """

    variation: tuple[float, ...] = (3e-4, 3e-3, 0.02, 0.1)
    steps: tuple[int, ...] = (300, 1_200)
    quick: range = range(200, 208)
    on: range = range(200, 232)
    kept: int = 3
    longest: bool = True

    def candidates(self, model: str) -> dict[str, GradientMatching]:
        """Attacks on a network by name, all in the fewer of the numbers of steps."""
        annealed = dataclasses.replace(ATTACKS["annealed-lenet"], steps=self.steps[0])
        found = {f"Adam, tv {tv:g}": dataclasses.replace(annealed, tv=tv) for tv in self.variation}
        if model == "lenet":
            once = dataclasses.replace(ATTACKS["strong-lenet"], steps=self.steps[0])
            for tv in self.variation:
                found[f"L-BFGS, tv {tv:g}"] = dataclasses.replace(once, tv=tv)
        return found

    def made(
        self, study: Study, model: str, policy: str, net: Handle | None = None
    ) -> tuple[GradientMatching, pd.DataFrame]:
        """The attack that is best on a network behind a policy, and the bits of each that came to the
        second selection.

        *First selection*: each in the fewer steps. Those of most bits stay, and the best of each
        optimizer. *Second selection*: these in each number of steps. Bits are the mean of
        log2(candidates / rank), which needs no fit; within `TIE` of the most the shortest is taken.

        Args:
            net: None: the untrained one, with weights that no judged attack has.
        """
        net = net or study.network(model, draw=DRAW)

        def runs_of(attacks: dict[str, GradientMatching], rows: range) -> dict[str, Handle]:
            runs = {
                name: study.attack(net, policy=policy, attack=attack, images=rows, draw=DRAW)
                for name, attack in attacks.items()
            }
            study.compute([study.outcomes(run) for run in runs.values()])
            return runs

        candidates = self.candidates(model)
        first = {name: bits(study, run) for name, run in runs_of(candidates, self.quick).items()}
        order = sorted(first, key=lambda name: -first[name])
        kinds = dict.fromkeys(name.partition(",")[0] for name in first)
        best_of_each = [next(name for name in order if name.startswith(kind)) for kind in kinds]
        second = {
            f"{name}, {steps} steps": dataclasses.replace(candidates[name], steps=steps)
            for name in dict.fromkeys([*order[: self.kept], *best_of_each])
            for steps in self.steps
        }
        if model == "lenet" and self.longest:
            second["the paper's, 4,800 steps"] = ATTACKS["adam-cosine"]
        told = {name: bits(study, run) for name, run in runs_of(second, self.on).items()}
        near = [name for name in told if told[name] >= max(told.values()) - TIE]
        best = min(near, key=lambda name: (second[name].steps, -told[name]))
        rows = pd.DataFrame({"attack": list(told), "bits": list(told.values())})
        rows = rows.assign(model=model, policy=policy or "none", chosen=rows["attack"] == best)
        return second[best], rows


def bits(study: Study, run: Handle) -> float:
    """Mean of log2(100 / rank) over an attack's photographs, in bits."""
    ranks: Sequence[float] = np.asarray(study.outcomes(run).value["rank"], dtype=float)
    return float(np.log2(100 / ranks).mean())
