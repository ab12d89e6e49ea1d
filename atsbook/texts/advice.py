"""The page "Should I use this?": what a client gets for a policy, in numbers of the stored results."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from atsbook.findings import compare
from atsbook.findings.result import NO_POLICY, Result, stored_result
from atsbook.pages import ext6_defenses, ext9_collaborative
from atsbook.runs.adaptive import DRAWS, LEARNED, POLICY, STRONGEST, UNDONE, watching
from atsbook.runs.table1 import HYBRID
from atsbook.texts.answers import newest

PAGE = "results/{}.ipynb"
KNOWING = {
    "ignores it": STRONGEST,
    "undoes it afterwards": UNDONE,
    "attacks through it": POLICY,
    "was told what it drew": DRAWS,
    "was told, and watches four rounds": watching(DRAWS, 4),
    "has learned on other images": LEARNED,
}
LEADS = {
    "reproduced": "**It helps where attacks work.** The hybrid lowers what an attack learns from a gradient.",
    "partly": "**Not as your only protection.** Where attacks work, the hybrid lowers what the strongest learn from a "
    "gradient in some places and not in others; the tables say what is left to them where it does.",
    "not reproduced": "**Not as your protection.** Where attacks work, the hybrid does not lower what the strongest "
    "learn from a gradient; it shows the server another picture of the same content.",
    "cannot tell": "**Nobody can tell yet.** No attack here learns anything from an undefended gradient.",
}


def advice(results: Path) -> str:
    """The page as MyST Markdown; it says so where nothing has been measured."""
    regimes = newest("regimes", results)
    head = "# Should I use this?\n\n"
    if regimes is None:
        return head + "Not measured yet.\n"
    status = stored_result(regimes[0])["verdict"]["status"]
    attacks = pd.read_csv(regimes[0] / "attacks.csv", dtype={"policy": str})
    facts = regimes[1]
    parts = [
        head + LEADS[status],
        _scale(facts),
        _got(attacks, regimes[0], results),
        _stages(attacks),
    ]
    parts += [_knowing(results), _federation(results), _rivals(results), _instead(results), NEXT]
    return "\n\n".join(part for part in parts if part) + "\n"


NEXT = """## What to do then

- **Measure your own case.** Your network, your images, your policy and a stronger attack are a few lines:
  {doc}`your_own`. A policy that was good on another network is no evidence for yours.
- **Look at the gain, not at the PSNR.** A policy that darkens or shifts the images lowers every PSNR, that of a blind
  guess included. {doc}`results/regimes` shows both.
- **Do not take a score for an attack.** How far the privacy score predicts anything is on
  {doc}`results/claim7_correlation`.
- **Compare other defenses at their worst.** {doc}`results/ext6_defenses` has each against the strongest of several
  attackers, beside the accuracy that it leaves.
- **Do not count on batches, local steps or secret labels.** What they hide is measured on
  {doc}`results/ext7_general_leakage`. A large batch stops the matching of gradients, and the last layer's gradient
  still tells which of a set of images are in it: {doc}`results/ext8_inverting_gradients`.
- **Expect an attacker who knows the policy.** A server that ran the search does. None of the numbers is a guarantee;
  only a formal bound, such as differential privacy, is one."""


def _scale(facts: dict) -> str:
    return (
        f"Measured at profile *{facts['profile']}* on {facts['dataset']}, {facts['made']}, {facts['device']}: small "
        f"networks, single images, a server that knows the label. Each number is a mean over images; "
        f"[intervals and every image]({PAGE.format('regimes')})."
    )


def _gain(rows: pd.DataFrame) -> str:
    return compare.interval(compare.gained(rows))


OUTCOMES: dict[str, Callable[[pd.DataFrame], str]] = {
    "the server picks the image that you used out of 100": lambda rows: compare.found(
        rows["rank_target"]
    ),
    "it picks your photograph out of 100, knowing the policy": lambda rows: compare.found(
        rows["rank_knowing"]
    ),
    "it picks your photograph out of 100, undoing nothing": lambda rows: compare.found(
        rows["rank_original"]
    ),
    "it learns more than a blind guess by": _gain,
}


def _got(attacks: pd.DataFrame, regimes: Path, results: Path) -> str:
    """What a client gets: one row per network, regime and outcome, its accuracy once trained, then
    time.
    """
    lines = [
        "## What you get for it",
        "| network | | no policy | with the hybrid |",
        "|---|---|---|---|",
    ]
    accuracies = regimes / "networks.csv"
    known = (
        pd.read_csv(accuracies, dtype={"policy": str}) if accuracies.exists() else pd.DataFrame()
    )
    known = known.set_index(["regime", "model", "policy"])["accuracy"] if len(known) else None
    kept = attacks[attacks["regime"].isin(("initial", "trained"))]
    for (regime, model), rows in kept.groupby(["regime", "model"], sort=False):
        where = f"{model}, {'untrained' if regime == 'initial' else 'end of training'}"
        both = [rows[rows["policy"] == policy] for policy in (NO_POLICY, HYBRID)]
        said = {name: [of(part) for part in both] for name, of in OUTCOMES.items()}
        if regime == "trained" and known is not None:
            said["accuracy"] = [
                f"{known[regime, model, policy]:.1f} %" for policy in (NO_POLICY, HYBRID)
            ]
        for head, (name, words) in zip([where, *[""] * len(OUTCOMES)], said.items(), strict=False):
            lines.append(f"| {head} | {name} | {' | '.join(words)} |")
    if claim4 := newest("claim4_efficiency", results):
        cost = pd.read_csv(claim4[0] / "cost.csv", dtype={"policy": str}).set_index("policy")[
            "share"
        ]
        lines.append(
            f"| | time of the transformations, share of training | 0 % | {cost[HYBRID]:.1%} |"
        )
    return lines[0] + "\n\n" + "\n".join(lines[1:])


def _stages(attacks: pd.DataFrame) -> str:
    """How long undefended gradients tell something, one row per network that was followed through
    its training.
    """
    bare = attacks[attacks["policy"] == NO_POLICY]
    early = bare[bare["regime"] == "early"]
    lines = []
    for model in early["model"].unique():
        own = bare[
            (bare["model"] == model) & (bare["regime"] != "semi")
        ]  # that is another training
        # attacks of one length
        rows = own[own["regime"] != "trained"]
        longer = own[own["regime"] == "trained"]
        leaking = [step for step, table in rows.groupby("step") if compare.gained(table)["low"] > 0]
        words = f"{max(leaking):,} of {rows['step'].max():,}" if leaking else "none"
        ends = (
            rows[rows["step"] == 0],
            longer if len(longer) else rows[rows["step"] == rows["step"].max()],
        )
        lines.append(
            f"| {model} | {words} | {' | '.join(compare.found(at['rank_target']) for at in ends)} |"
        )
    if not lines:
        return ""
    head = "| network | more than a blind guess up to step | used image found: untrained | at the last step |"
    return (
        "## When it matters\n\n"
        "Networks were attacked along their training, without a policy: the last step at which the gradient tells more "
        "than a blind guess (95 % interval of the gain above 0), and how often the server picks the image that was "
        "used out of 100 (chance: 1 %).\n\n"
        + "\n".join([head, "|---|---|---|---|", *lines])
        + "\n\n"
        "A server can send an untrained network at any time. What a trained one gives away depends on the network: "
        "measure yours."
    )


def _knowing(results: Path) -> str:
    """What a server gains that uses the policy in its attack, against the image before the policy,
    by network.
    """
    if (page := newest("ext5_adaptive", results)) is None:
        return ""
    files = [
        file for name in ("attacks", "elsewhere") if (file := page[0] / f"{name}.csv").exists()
    ]
    attacks = pd.concat([pd.read_csv(file, dtype={"policy": str}) for file in files])
    attacks["gain"] = attacks["gain_before"]
    places = list(attacks["place"].unique())
    asked = [(NO_POLICY, "no policy, the strongest attack", STRONGEST)]
    asked += [
        (HYBRID, f"the hybrid, a server that {words}", attacker)
        for words, attacker in KNOWING.items()
    ]
    lines = [f"| | {' | '.join(places)} |", "|---" * (len(places) + 1) + "|"]
    for policy, words, attacker in asked:
        own = attacks[(attacks["policy"] == policy) & (attacks["attacker"] == attacker)]
        parts = [own[own["place"] == where] for where in places]
        cells = [
            f"{_gain(rows)}; {compare.found(rows['rank_original'])}" if len(rows) else "–"
            for rows in parts
        ]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return (
        "## Against a server that knows the policy\n\nWhat it learns more than a blind guess, against the image before "
        "the policy, and how often its picture is most like your photograph among 100 "
        f"([page]({PAGE.format('ext5_adaptive')})).\n\n" + "\n".join(lines)
    )


def _federation(results: Path) -> str:
    """What ten clients that train together give away and lose: by who looks and when, and by how
    they train.
    """
    if (page := newest(ext9_collaborative.PAGE, results)) is None:
        return ""
    attacks = pd.read_csv(page[0] / "attacks.csv", dtype={"policy": str})
    accuracy = pd.read_csv(page[0] / "accuracy.csv", dtype={"policy": str}).query(
        "view == 'server'"
    )
    lines = ["| | | no policy | with the hybrid |", "|---|---|---|---|"]
    own = attacks.query(
        "protocol == @ext9_collaborative.FEDSGD and shards == 'equal' and view != 'neighbour'"
    )
    first = own["past"].min()
    last = own["past"].max()
    for (view, past), rows in own[own["past"].isin((first, last))].groupby(
        ["view", "past"], sort=False
    ):
        who = {"server": "the server", "sum": "one that sees only the sum of ten answers"}[view]
        both = [
            compare.found(rows[rows["policy"] == policy]["rank_knowing"])
            for policy in (NO_POLICY, HYBRID)
        ]
        lines.append(f"| {rows['network'].iloc[0]}, round {past + 1} | {who} picks your photograph out of 100, knowing "
                     f"the policy | {both[0]} | {both[1]} |")  # fmt: skip
    for (network, protocol), rows in accuracy.groupby(["network", "protocol"], sort=False):
        rounds = rows["rounds"].max()
        level = rows[rows["rounds"] == rounds].groupby("policy")["accuracy"].mean()
        change = compare.interval(
            ext9_collaborative.changes(rows, ["network"]).loc[(network, HYBRID)], ""
        )
        both = f"{level[NO_POLICY]:.1f} % | {level[HYBRID]:.1f} % ({change})"
        lines.append(f"| {network}, {protocol} | accuracy after {rounds} rounds | {both} |")
    return (
        "## In a federation\n\nTen clients who train one network together; the change of the accuracy in points, its "
        f"interval over federations ([page]({PAGE.format(ext9_collaborative.PAGE)})).\n\n"
        + "\n".join(lines)
    )


def _rivals(results: Path) -> str:
    """The defenses on gradients beside the policy: gain, identification and accuracy."""
    page = newest("claim1_defenses", results)
    if page is None:
        return ""
    attacks = pd.read_csv(page[0] / "attacks.csv", dtype={"defense": str})
    accuracy = pd.read_csv(page[0] / "accuracy.csv", dtype={"defense": str}).set_index("defense")[
        "accuracy"
    ]
    lines = [
        "| defense | more than a blind guess | picks the image you used | accuracy |",
        "|---|---|---|---|",
    ]
    for name, rows in attacks[attacks["applied"] == "fixed"].groupby("defense", sort=False):
        known = f"{accuracy[name]:.1f} %" if name in accuracy else "–"
        lines.append(f"| {name} | {_gain(rows)} | {compare.found(rows['rank_target'])} | {known} |")
    model = page[1]["model"]
    return (
        f"## Beside noise and pruning\n\nOn {model}, the same attack, which does not adapt to the defense; "
        f"accuracies are of one small training each ([page]({PAGE.format('claim1_defenses')})).\n\n"
        + "\n".join(lines)
    )


def _instead(results: Path) -> str:
    """Defenses of every kind, each against an attacker who knows it: whom each serves, by regime of
    the network.
    """
    if (page := newest("ext6_defenses", results)) is None:
        return ""
    names = ("attacks", "accuracy")
    tables = {
        name: pd.read_csv(page[0] / f"{name}.csv", dtype={"defense": str, "policy": str})
        for name in names
    }
    result = Result("ext6_defenses", tables, page[1], None)
    asked = {
        name: word
        for name, word in ext6_defenses.REGIMES.items()
        if (tables["attacks"]["regime"] == name).any()
    }
    words = [
        f"**{word.capitalize()}.** {ext6_defenses.advice(result, name)}"
        for name, word in asked.items()
    ]
    return (
        f"## Another defense, then?\n\nOn {page[1]['model']}, a small network that trains in seconds, each defense at "
        "its worst: against the strongest of several attackers who know it "
        f"([page]({PAGE.format('ext6_defenses')})).\n\n"
    ) + "\n\n".join(words)
