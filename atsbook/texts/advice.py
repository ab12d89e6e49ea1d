"""The page "Should I use this?": what a client gets for a policy, in numbers of the stored results."""

from pathlib import Path

import pandas as pd

from atsbook.findings import compare, defenses
from atsbook.findings.federations import policy_changes
from atsbook.findings.photographs import arrow
from atsbook.findings.result import NO_POLICY, table_file
from atsbook.findings.statistics import ENOUGH
from atsbook.runs.adaptive import SERVERS
from atsbook.runs.table1 import HYBRID
from atsbook.texts.first_screen import MISSING, NAMES, Numbers, numbers, percent
from atsbook.texts.newest import newest
from atsbook.texts.start import answer, rendered, what_it_costs

PAGE = "results/{}.ipynb"


def advice(results: Path) -> str:
    """The page as MyST Markdown; it says so where nothing has been measured."""
    known = numbers(results)
    bare, hidden = _situations(known)
    privacy = newest("claim1_privacy", results)
    folds = [_got(*privacy, results)] if privacy else []
    folds += [_stages(results), _knowing(results), _federation(results), _rivals(results)]
    folds += [_instead(results), NEXT if privacy else ""]
    return rendered(
        "should_i.md.jinja",
        answer=answer(known),
        bare=bare,
        hidden=hidden,
        epochs=f"{known.paper_accuracy[2]:.0f}" if known.paper_accuracy else MISSING,
        what_it_costs=what_it_costs(known) if known.accuracy else MISSING,
        share=_time(results),
        folds=[_folded(text) for text in folds if text],
    )


def _folded(text: str) -> tuple[str, str]:
    """The title and the rest of a part of the page."""
    title, _, rest = text.removeprefix("## ").partition("\n\n")
    return title, rest.strip()


def _situations(known: Numbers) -> tuple[dict[str, str], dict[str, str]]:
    """Photographs picked out without a policy and with the paper's, by situation."""
    pairs = {
        "wide": known.on_papers("untrained"),
        "trained": known.on_papers("trained"),
        "late": known.trained.get("lenet"),
        "sum": known.summed,
    }
    sides = tuple(
        {name: percent(ends[side]) if ends else MISSING for name, ends in pairs.items()}
        for side in (0, 1)
    )
    for side, shown in enumerate(sides):
        # 299 of 300 are not all
        shown["best"] = (
            f"{100 * known.best[side] / known.best[2]:.1f}".removesuffix(".0") + " %"
            if known.best
            else MISSING
        )
    return sides


def _time(results: Path) -> str:
    """What drawing and applying the policy takes of an epoch on a CPU."""
    page = newest("claim4_efficiency", results)
    if page is None:
        return MISSING
    cost = pd.read_csv(table_file(page[0], "cost"), dtype={"policy": str}).set_index("policy")
    return f"{100 * cost.loc[HYBRID, 'share']:.1f} %"


# Of tables whose shares are of the first half
OTHER_SHARES = (
    "Shares are of other photographs than on top, each looked for among 100 images of any class, by an earlier comparison "
    "that misses some photographs behind a policy: with a policy they are lower bounds. Compare them within this table."
)
NEXT = """## What to do then

- **Measure your own case.** Your network, your images, your policy and a stronger attack are a few lines:
  {doc}`your_own`. A policy that was good on another network is no evidence for yours.
- **Ask whether the photograph is found, not how many decibels.** A policy that darkens or shifts the images moves
  every PSNR, that of a guess included.
- **Do not take a score for an attack.** How far the privacy score predicts anything is on
  {doc}`results/claim7_correlation`.
- **Compare other defenses at their worst.** {doc}`results/ext6_defenses` has each against the strongest of several
  attackers, beside the accuracy that it leaves.
- **Do not count on batches, local steps or secret labels.** What they hide is measured on
  {doc}`results/ext7_general_leakage`. A large batch stops the matching of gradients, and the last layer's gradient
  still tells which of a set of images are in it: {doc}`results/ext8_inverting_gradients`.
- **Expect an attacker who knows the policy.** A server that ran the search does. None of the numbers is a guarantee;
  only a formal bound, such as differential privacy, is one."""


def _got(privacy: Path, facts: dict, results: Path) -> str:
    """What a client gets: one row per network, untrained and trained."""
    attacks = pd.read_csv(table_file(privacy, "attacks"), dtype={"policy": str})
    known = pd.read_csv(table_file(privacy, "networks"), dtype={"policy": str})
    known = known.set_index(["regime", "model", "policy"])["accuracy"]
    lines = [
        "| network | photograph found, % | bits | gain, dB | accuracy, % |",
        "|---|---|---|---|---|",
    ]
    kept = attacks[attacks["regime"].isin(("initial", "trained"))]
    for (regime, model), rows in kept.groupby(["regime", "model"], sort=False):
        if rows["image"].nunique() < ENOUGH:
            continue
        ends = [rows[rows["policy"] == policy] for policy in (NO_POLICY, HYBRID)]
        cells = [f"{NAMES.get(model, model)}, {'untrained' if regime == 'initial' else 'trained'}"]
        cells.append(arrow(*(100 * end["found"].astype(bool).mean() for end in ends), "{:.0f}"))
        cells.append(arrow(*(end["bits"].mean() for end in ends)))
        cells.append(arrow(*(end["gain_told"].mean() for end in ends), "{:+.1f}"))
        learned = [known.get((regime, model, policy)) for policy in (NO_POLICY, HYBRID)]
        cells.append("–" if None in learned else arrow(*learned))
        lines.append(f"| {' | '.join(cells)} |")
    text = (
        "## Each network that was attacked\n\n"
        "Photographs picked out of 100 of their class, without → with the paper's policy. "
        "*Bits*: what the server's guess is worth, 6.6 at most. *Gain*: dB above the guess of somebody who was told "
        "label, policy and draw and sees no gradient. Measured at "
        f"profile *{facts['profile']}* on {facts['dataset']}, {facts['device']}: small networks, single images, a server "
        f"that knows the label ([page]({PAGE.format('claim1_privacy')})).\n\n"
    ) + "\n".join(lines)
    if (kept["regime"] == "trained").any():
        text += (
            "\n\nIn the rows *trained* each side has its own network, trained with the same policy. A network that has "
            "learned less with the policy may leak less for that reason alone: what is the network and what the image is "
            f"on [another page]({PAGE.format('regimes')})."
        )
    return text


def _stages(results: Path) -> str:
    """What gradients tell along a training, one row per network that was followed through it."""
    if (page := newest("regimes", results)) is None:
        return ""
    attacks = pd.read_csv(table_file(page[0], "attacks"), dtype={"policy": str})
    bare = attacks[(attacks["policy"] == NO_POLICY) & (attacks["regime"] != "semi")]
    lines = []
    followed = bare[bare["regime"] == "early"]["model"].unique()
    order = {model: place for place, model in enumerate(NAMES)}
    for model in sorted(followed, key=lambda model: order.get(model, len(order))):
        own = bare[bare["model"] == model]
        last = own["step"].max()
        end = own[own["step"] == last]
        if (end["regime"] == "trained").any():  # by more images than along the way
            end = end[end["regime"] == "trained"]
        ends = [own[own["step"] == 0], end]
        cells = [
            arrow(*(100 * (end[column] == 1).mean() for end in ends), "{:.0f}")
            for column in ("rank_original", "rank_target")
        ]
        lines.append(f"| {NAMES.get(model, model)} | {last:,} | {' | '.join(cells)} |")
    if not lines:
        return ""
    head = "| network | last step | photograph found, % | used image found, % |"
    return (
        "## When it matters\n\n"
        "Networks were attacked along their training, without a policy. In this table arrows go from the untrained network "
        f"to the end of its training; in between the share can be lower ([page]({PAGE.format('regimes')})). {OTHER_SHARES}"
        "\n\n" + "\n".join([head, "|---|---|---|---|", *lines]) + "\n\n"
        "In the first round the network is untrained, and a server that does not keep to the protocol can send such a one "
        "at any time. What a trained one gives away depends on the network: measure yours."
    )


def _knowing(results: Path) -> str:
    """How often a photograph is found by a server that uses the policy in its attack, by network."""
    page = newest("ext5_adaptive", results)
    if page is None or not (file := table_file(page[0], "judged")).exists():
        return ""
    judged = pd.read_csv(file)
    models = list(judged["model"].unique())
    count = judged[judged["knows"] == "no policy"].groupby("model").size()
    names = [
        f"{NAMES.get(model, model)}, untrained, {count[model]} photographs" for model in models
    ]
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(models) + 1) + "|"]
    shares = judged.groupby(["model", "knows", "rounds"])["found"].mean()
    for server, does in SERVERS.items():
        each = [shares.get((model, *server)) for model in models]
        cells = ["–" if share is None else f"{100 * share:.0f}" for share in each]
        who = does if does == "no policy" else f"with the policy: {does}"
        lines.append(f"| {who} | {' | '.join(cells)} |")
    return (
        "## Against a server that knows the policy\n\nHow often, in percent, such a server singles out your photograph "
        f"among the 100 test images of its class ([page]({PAGE.format('ext5_adaptive')})). These are photographs of the "
        "table on top, with the first of its draws of the weights. In one round, attacking through the policy is "
        "weaker, since part of the picture that is searched left no trace in the gradient. No client tells what it drew: "
        "the rows of a server that was told show what this attack could do then. "
        "Four rounds have the same weights and crops.\n\n" + "\n".join(lines)
    )


def _federation(results: Path) -> str:
    """What ten clients that train together give away and lose: by who looks and when, and by how
    they train.
    """
    if (page := newest("ext9_collaborative", results)) is None:
        return ""
    told, attacks, accuracy = (
        pd.read_csv(table_file(page[0], name), dtype={"policy": str})
        for name in ("told", "attacks", "accuracy")
    )
    accuracy = accuracy.query("view == 'server'")
    lines = ["| | | no policy | with the policy |", "|---|---|---|---|"]
    attacked = attacks["network"].iloc[0]
    for (view, past), rows in told.groupby(["view", "past"], sort=False):
        who = {"server": "the server", "sum": "one that sees only the sum of ten answers"}[view]
        where = NAMES.get(attacked, attacked)
        both = [
            f"{100 * rows[rows['policy'] == policy]['found'].mean():.0f} %"
            for policy in (NO_POLICY, HYBRID)
        ]
        lines.append(
            f"| {where}, round {past + 1} | photographs found by {who} | {both[0]} | {both[1]} |"
        )
    for (network, protocol), rows in accuracy.groupby(["network", "protocol"], sort=False):
        rounds = rows["rounds"].max()
        level = rows[rows["rounds"] == rounds].groupby("policy")["accuracy"].mean()
        change = policy_changes(rows, ["network"]).loc[(network, HYBRID)]
        both = f"{level[NO_POLICY]:.1f} % | {level[HYBRID]:.1f} % ({compare.interval(change, '')})"
        named = NAMES.get(network, network)
        lines.append(f"| {named}, {protocol} | accuracy after {rounds} rounds | {both} |")
    return (
        "## In a federation\n\nTen clients who train one network together, watched by somebody who knows the "
        "policy. In FedSGD a client answers with one gradient, in FedAvg with how its weights changed while it trained. "
        "The change of the accuracy is in points, its interval over federations, some of which share a seed "
        f"([page]({PAGE.format('ext9_collaborative')})). Shares are of 30 other photographs than on top, in FedSGD with "
        "equal shards, each looked for among 100 of its own class.\n\n" + "\n".join(lines)
    )


def _by_kind(defense: str) -> tuple[bool, bool, bool, str, float]:
    """No defense first, then policies, then each kind by its strength."""
    kind, _, strength = defense.partition(":")
    return (defense != NO_POLICY, bool(strength), defense != HYBRID, kind, float(strength or 0))


def _rivals(results: Path) -> str:
    """The defenses on gradients beside the policy: what is found, and accuracy."""
    page = newest("claim1_defenses", results)
    if page is None:
        return ""
    attacks = pd.read_csv(table_file(page[0], "attacks"), dtype={"defense": str})
    accuracy = pd.read_csv(table_file(page[0], "accuracy"), dtype={"defense": str}).set_index(
        "defense"
    )["accuracy"]
    lines = ["| defense | photograph found, % | bits | accuracy, % |", "|---|---|---|---|"]
    defended = dict(list(attacks[attacks["applied"] == "fixed"].groupby("defense", sort=False)))
    for name in sorted(defended, key=_by_kind):
        rows = defended[name]
        known = f"{accuracy[name]:.1f}" if name in accuracy else "–"
        found = 100 * rows["found"].mean()
        lines.append(
            f"| {defenses.called(name)} | {found:.0f} | {rows['bits'].mean():.1f} | {known} |"
        )
    model = page[1]["model"]
    return (
        f"## Beside noise and pruning\n\nOn {NAMES.get(model, model)}, the same attack, which does not adapt to the "
        "defense; bits are what it tells of the photograph, 6.6 at most; accuracies are of one small training of a "
        f"ResNet20-1 each ([page]({PAGE.format('claim1_defenses')})). Another attack than on top, from which the policy "
        "hides less.\n\n" + "\n".join(lines)
    )


def _instead(results: Path) -> str:
    """Defenses of every kind, each against an attacker who knows it: whom each serves, by regime of
    the network.
    """
    page = newest("ext6_defenses", results)
    if page is None or not table_file(page[0], "worst").exists():
        return ""
    table = pd.read_csv(table_file(page[0], "worst"), dtype={"defense": str})
    words = [
        f"**{word.capitalize()}.** {defenses.advice(table[table['regime'] == name])}"
        for name, word in defenses.REGIMES.items()
        if (table["regime"] == name).any()
    ]
    return (
        f"## Another defense, then?\n\nOn `{page[1]['model']}`, a small network that trains in seconds, each defense at "
        "its worst: against the strongest of several attackers who know it "
        f"([page]({PAGE.format('ext6_defenses')})). Found among 100 images of any class, by which that page's rule goes; "
        "its own table counts among those of the own class.\n\n"
    ) + "\n\n".join(words)
