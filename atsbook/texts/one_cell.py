"""Every pair of attacks on one cell, an untrained LeNet on CIFAR-100 without a policy and with the hybrid: why pages
print different shares of the same cell.
"""

import dataclasses
from collections import defaultdict
from pathlib import Path

import numpy as np

from atsbook.evidence.archive import Archive, request_of
from atsbook.experiment import AttackRequest, OutcomeRequest
from atsbook.findings.photographs import arrow
from atsbook.findings.table1 import HYBRID
from atsbook.texts.marks import insert_tables
from atslib import ATTACKS, GradientMatching

MARK = "<!-- one cell -->"
HEAD = "| Attack | Steps | Test images | Draws | Found, % | Bits | Page |\n|---|---|---|---|---|---|---|"


def called(attack: GradientMatching) -> str:
    """The preset that an attack is, whatever its steps and starts; else its title."""
    for name, preset in ATTACKS.items():
        if dataclasses.replace(preset, steps=attack.steps, restarts=attack.restarts) == attack:
            return f"`{name}`"
    return attack.title


def in_the_cell(attack: AttackRequest) -> bool:
    """Whether it is a plain attack on single images by an untrained LeNet, without a policy or with the hybrid."""
    model = attack.model
    return (
        (model.dataset, model.model, model.train) == ("cifar100", "lenet", None)
        and attack.policy in ("", HYBRID)
        and not attack.defense
        and attack.rounds == 1
        and attack.crop_flip
        and isinstance(attack.attack, GradientMatching)
    )


def one_cell(evidence: Path) -> str:
    """A Markdown table, a row for each pair of attacks that differ in the policy alone, over all draws of weights and
    policy; those that find most under the hybrid first.

    Args:
        evidence: the folder of the archive.
    """
    archive = Archive(evidence)
    kept = defaultdict(lambda: {"": [], HYBRID: []})
    pages = defaultdict(set)
    for key, line in archive.entries().items():
        request = request_of(line) if line["kind"] == OutcomeRequest.kind else None
        if request and in_the_cell(request.attack):
            attack = request.attack
            place = attack.attack, attack.first, attack.last
            told = archive.read(key).tensors
            kept[place][attack.policy].append((told["rank"].numpy() == 1, told["bits"].numpy()))
            pages[place].update(line["pages"])
    rows = []
    for place, both in kept.items():
        if not all(both.values()) or not pages[place]:
            continue
        attack, first, last = place
        found, bits = (
            [float(np.concatenate([draw[k] for draw in own]).mean()) for own in both.values()]
            for k in range(2)
        )
        links = ", ".join(f"[{page}](results/{page}.ipynb)" for page in sorted(pages[place]))
        cells = [
            called(attack),
            str(attack.steps),
            f"{first:,} to {last - 1:,}",
            str(len(both[HYBRID])),
            arrow(*(100 * share for share in found), "{:.0f}"),
            arrow(*bits),
            links,
        ]
        rows.append((-found[1], f"| {' | '.join(cells)} |"))
    return "\n".join([HEAD, *(row for _, row in sorted(rows))]) + "\n"


def insert_one_cell(path: Path, evidence: Path) -> None:
    """Put the table between its marks in a Markdown file; a file that is not there is left."""
    insert_tables(path, evidence, {MARK: one_cell})
