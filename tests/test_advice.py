"""The page "Should I use this?": its words follow from the stored tables."""

import json

import pandas as pd
from checks import refused

from atsbook.findings.result import FILE, NO_POLICY
from atsbook.runs.table1 import HYBRID
from atsbook.texts.advice import advice

RANKS = ("rank_target", "rank_knowing", "rank_original")


def stored(results, page, status="partly", **tables):
    """A page's tables on real data at profile laptop, as `Result.write` leaves them."""
    folder = results / page / "cifar100-laptop"
    folder.mkdir(parents=True)
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv.gz", index=False)
    facts = {
        "dataset": "cifar100",
        "model": "lenet",
        "images": 40,
        "profile": "laptop",
        "device": "CPU",
        "made": "today",
    }
    verdict = {"status": status, "reason": "", "rule": ""}
    (folder / FILE).write_text(json.dumps({"verdict": verdict, "facts": facts}))


def attacked(regime, step, gain, found, policy=NO_POLICY, **more):
    """Forty images with gains around `gain`, of which the share `found` is identified."""
    rows = [{"image": i, "draw": 0, "gain": gain + 0.1 * (i % 3 - 1)} for i in range(40)]
    ranks = {name: [1 if i < 40 * found else 2 for i in range(40)] for name in RANKS}
    told = {"found": [i < 40 * found for i in range(40)], "bits": 6 * found}
    return pd.DataFrame(rows).assign(
        regime=regime, step=step, model="resnet20-1", policy=policy, **ranks, **told, **more
    )


def privacy(results, status="partly", attacks=None, networks=None):
    """Claim 1's tables, without which the page says nothing."""
    parts = [attacked("initial", 0, gain, found, policy=p) for p, gain, found in BOTH]
    attacks = pd.concat(parts) if attacks is None else attacks
    columns = ["regime", "step", "model", "policy", "accuracy"]
    networks = pd.DataFrame(columns=columns) if networks is None else networks
    stored(
        results,
        "claim1_privacy",
        status,
        attacks=attacks.assign(gain_told=attacks["gain"]),
        networks=networks,
    )


def measured(results, hidden=0.95):
    """All that the top of the page needs: what the best attack finds behind the policy is `hidden`."""
    ends = [(NO_POLICY, 1.0), (HYBRID, 0.9)]
    attacks = [
        attacked("initial", 0, 3.0, share, policy=policy).assign(model="lenet")
        for policy, share in ends
    ]
    each = [
        pd.DataFrame(
            {"state": state, "policy": policy, "found": [i < 10 * share for i in range(10)]}
        )
        for state, policy, share in (
            ("untrained", NO_POLICY, 0.9),
            ("untrained", HYBRID, 0.6),
            ("trained", NO_POLICY, 0.2),
            ("trained", HYBRID, 0.1),
        )
    ]
    policies = [NO_POLICY, HYBRID]
    best = results / "best_answer" / "cifar100-laptop"
    best.mkdir(parents=True)
    hits = {"none": 300, "hybrid": round(300 * hidden), "attacks": 300}
    numbers = {"LeNet": {"hits": hits}}
    (best / "numbers.json").write_text(json.dumps(numbers))
    stored(
        results,
        "claim1_privacy",
        attacks=pd.concat(attacks).assign(gain_told=1.0),
        networks=pd.DataFrame(columns=["regime", "step", "model", "policy", "accuracy"]),
        accuracy=pd.DataFrame({"policy": policies, "accuracy": [57.0, 47.0]}),
        accuracy_longer=pd.DataFrame(
            {"seed": [0, 1], NO_POLICY: [66.0, 67.0], HYBRID: [61.0, 63.0], "epochs": 60}
        ),
        paper_accuracy=pd.DataFrame({"policy": policies, "accuracy": [72.0, 64.0], "epochs": 12}),
        paper_judged=pd.concat(each),
    )


BOTH = [(NO_POLICY, 3.0, 0.5), (HYBRID, -1.0, 0.25)]


def test_without_results_nothing_is_advised(tmp_path):
    assert advice(tmp_path) == "# Should I use this?\n\nNot measured yet.\n"
    privacy(tmp_path)
    assert "\n\nNot measured yet.\n" in advice(tmp_path)  # of one network alone


def test_the_situations_have_the_numbers_of_the_pages(tmp_path):
    measured(tmp_path)
    text = advice(tmp_path)
    assert text.startswith("# Should I use this?\n\n**Not as your only protection.** ")
    for row in (
        "| A curious server, in round one | LeNet: 100 %<br>ResNet20-4: 90 % | LeNet: 95 %<br>ResNet20-4: 60 % |",
        "| LeNet: not measured yet<br>ResNet20-4: 20 %, after 12 epochs | LeNet: not measured yet<br>ResNet20-4: 10 % |",
        "| A server that sees only the sum of ten clients | LeNet: not measured yet |",
    ):
        assert row in text
    cost = "57.0 → 47.0 % on a ResNet20-1 after 20 epochs, 66.5 → 62.0 % after 60, 72.0 → 64.0 % on a ResNet20-4 after 12."
    assert f"**What it costs in accuracy:** {cost}" in text


def test_what_the_results_deny_is_no_advice(tmp_path):
    measured(tmp_path, hidden=0.25)
    with refused("a text says 'Not as your only protection.'"):
        advice(tmp_path)


def test_a_client_reads_what_a_server_finds_that_knows_the_policy(tmp_path):
    privacy(tmp_path)
    assert "Against a server that knows the policy" not in advice(tmp_path)
    rows = [
        pd.DataFrame({"found": [i < 40 * found for i in range(40)]}).assign(
            model=model, knows=knows, rounds=rounds
        )
        for model, knows, rounds, found in (
            ("lenet", "no policy", 1, 1.0),
            ("lenet", "ignores it", 1, 0.2),
            ("lenet", "draws", 4, 0.9),
            ("convnet", "no policy", 1, 0.8),
        )
    ]
    stored(tmp_path, "ext5_adaptive", judged=pd.concat(rows))
    text = advice(tmp_path)
    assert "| | LeNet, untrained, 40 photographs | convnet, untrained, 40 photographs |" in text
    assert "| no policy | 100 | 80 |" in text
    assert "| with the policy: ignores it until it compares | 20 | – |" in text
    assert "| with the policy: was told what it drew, four rounds | 90 | – |" in text


def test_a_client_reads_what_a_federation_gives_away_and_loses(tmp_path):
    measured(tmp_path)
    assert "In a federation" not in advice(tmp_path)
    cell = {"network": "lenet", "protocol": "FedSGD", "shards": "equal", "seed": 0}
    seen = [
        attacked("initial", 0, 3.0, found, policy=policy, view=view, past=past, **cell)
        for policy, view, past, found in (
            (NO_POLICY, "server", 0, 1.0),
            (HYBRID, "server", 0, 0.5),
            (NO_POLICY, "sum", 299, 0.25),
            (HYBRID, "sum", 299, 0.0),
        )
    ]
    learned = [
        cell
        | {
            "policy": policy,
            "seed": seed,
            "view": "server",
            "rounds": rounds,
            "accuracy": 10 + cost * seed + rounds,
        }
        for policy, cost in ((NO_POLICY, 1.0), (HYBRID, 0.0))
        for seed in range(3)
        for rounds in (0, 20)
    ]
    among_its_class = [  # what the page itself prints, and not what is found of any class
        pd.DataFrame({"found": [i < 10 * found for i in range(10)]}).assign(
            policy=policy, view=view, past=past
        )
        for policy, view, past, found in (
            (NO_POLICY, "server", 0, 0.9),
            (HYBRID, "server", 0, 0.7),
            (NO_POLICY, "sum", 0, 0.5),
            (HYBRID, "sum", 0, 0.2),
            (NO_POLICY, "sum", 299, 0.4),
            (HYBRID, "sum", 299, 0.1),
        )
    ]
    stored(
        tmp_path,
        "ext9_collaborative",
        attacks=pd.concat(seen),
        accuracy=pd.DataFrame(learned),
        told=pd.concat(among_its_class),
    )
    text = advice(tmp_path)
    assert "| LeNet, round 1 | photographs found by the server | 90 % | 70 % |" in text
    assert (
        "| LeNet, round 300 | photographs found by one that sees only the sum of ten answers | 40 % | 10 % |"
        in text
    )
    assert "| A server that sees only the sum of ten clients | LeNet: 50 % | LeNet: 20 % |" in text
    assert (
        "| LeNet, FedSGD | accuracy after 20 rounds | 31.0 % | 30.0 % (-1.0 [-3.5, 1.5]) |" in text
    )


def test_a_client_reads_what_it_gets(tmp_path):
    pairs = [("initial", 0), ("trained", 900)]
    both = [attacked(*when, gain, found, policy=p) for when in pairs for p, gain, found in BOTH]
    networks = pd.DataFrame({"policy": [NO_POLICY, HYBRID], "accuracy": [56.0, 42.5]})
    networks = networks.assign(regime="trained", step=900, model="resnet20-1")
    privacy(tmp_path, attacks=pd.concat(both), networks=networks)
    text = advice(tmp_path).replace("\u00a0", " ")
    assert "| ResNet20-1, untrained | 50 → 25 | 3.0 → 1.5 | +3.0 → −1.0 | – |" in text
    assert "| ResNet20-1, trained | 50 → 25 | 3.0 → 1.5 | +3.0 → −1.0 | 56.0 → 42.5 |" in text
    assert "When it matters" not in text  # no network was followed
    assert "Beside noise" not in text


def test_it_says_what_gradients_tell_along_a_training(tmp_path):
    parts = [
        attacked("initial", 0, 3.0, 0.5),
        attacked("early", 30, 1.0, 0.5),
        attacked("trained", 900, -2.0, 0.25),
    ]
    parts = [part.assign(rank_original=part["rank_knowing"]) for part in parts]
    privacy(tmp_path)
    stored(tmp_path, "regimes", attacks=pd.concat(parts))
    assert "| ResNet20-1 | 900 | 50 → 25 | 50 → 25 |" in advice(tmp_path).replace("\u00a0", " ")
    along = attacked("early", 900, -2.0, 0.0)
    along = along.assign(rank_original=along["rank_knowing"])
    stored(tmp_path / "other", "regimes", attacks=pd.concat([*parts, along]))
    privacy(tmp_path / "other")
    assert "| ResNet20-1 | 900 | 50 → 25 | 50 → 25 |" in advice(tmp_path / "other").replace(
        "\u00a0", " "
    )


def test_noise_and_pruning_stand_beside_the_policy(tmp_path):
    privacy(tmp_path)
    rows = [
        attacked("initial", 0, 0.0, 0.1, applied="fixed", defense=n).assign(
            found=share, bits=6 * share
        )
        for n, share in {"none": 1.0, "prune:0.9": 0.5, "laplace:0.01": 0.75}.items()
    ]
    stored(
        tmp_path,
        "claim1_defenses",
        attacks=pd.concat(rows),
        accuracy=pd.DataFrame({"defense": ["none"], "accuracy": [20.0]}),
    )
    text = advice(tmp_path)
    assert "| no defense | 100 | 6.0 | 20.0 |" in text
    assert "| Laplacian noise of 0.01 | 75 | 4.5 | – |\n| pruning of 90 % | 50 | 3.0 | – |" in text


def test_other_defenses_are_advised_by_regime(tmp_path):
    privacy(tmp_path)
    assert "Another defense" not in advice(tmp_path)
    rows = []
    for regime, share in (("initial", 100.0), ("trained", 75.0)):
        for name, kind, accuracy in (
            ("none", "none", 20.0),
            ("3-1-7", "ATS", 8.0),
            ("prune:0.9", "pruning", 19.0),
        ):
            row = {"regime": regime, "defense": name, "kind": kind, "attacker": "plain"}
            row |= {"found": share, "found low": share - 10, "found high": min(share + 10, 100)}
            rows.append(row | {"accuracy": accuracy, "usable": accuracy > 16})
    stored(tmp_path, "ext6_defenses", worst=pd.DataFrame(rows))
    text = advice(tmp_path)
    for word, share in (("Before training", 100), ("After a short training", 75)):
        assert (
            f"**{word}.** Without a defense the strongest attack finds {share} % of the photographs"
            in text
        )
    assert "pruning of 90 % (75 % found, 19.0 % accuracy)" in text
