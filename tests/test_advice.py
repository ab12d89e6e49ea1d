"""The page "Should I use this?": its words follow from what the pages export."""

from checks import exports, refused

from atsbook.texts.advice import advice


def shares(none, hybrid, photographs=100):
    return {"none": none, "hybrid": hybrid, "photographs": photographs}


def measured(results, hidden=0.95):
    """All that the page needs: what the best attack finds behind the policy is `hidden`."""
    hits = {"none": 300, "hybrid": round(300 * hidden), "attacks": 300}
    exports(results, "best_answer", {"networks": {"LeNet": {"hits": hits}}})
    found = {
        "untrained LeNet": shares(1.0, 0.9),
        "untrained ResNet20-4": shares(0.9, 0.6),
        "trained ResNet20-4": shares(0.2, 0.1),
        "trained LeNet": shares(0.5, 0.4, photographs=8),  # too few to say
    }
    accuracy = [
        {"network": "ResNet20-1", "epochs": 20, "none": 57.0, "hybrid": 47.0},
        {"network": "ResNet20-1", "epochs": 60, "none": 66.5, "hybrid": 62.0},
        {"network": "ResNet20-4", "epochs": 12, "none": 72.0, "hybrid": 64.0},
    ]
    exports(results, "claim1_privacy", {"found": found, "accuracy": accuracy})


def test_without_results_nothing_is_advised(tmp_path):
    nothing = "# Should I use this?\n\nNot measured yet.\n"
    assert advice(tmp_path) == nothing
    exports(tmp_path, "claim1_privacy", {"found": {"untrained LeNet": shares(1.0, 0.9)}})
    assert advice(tmp_path) == nothing  # of one network alone


def test_the_situations_have_the_numbers_of_the_pages(tmp_path):
    measured(tmp_path)
    text = advice(tmp_path)
    assert text.startswith("# Should I use this?\n\n**Not as your only protection.** ")
    for row in (
        "| A curious server, in round one | LeNet: 100 %<br>ResNet20-4: 90 % | LeNet: 95 %<br>ResNet20-4: 60 % |",
        "| LeNet: not measured yet; of a federation not measured yet<br>ResNet20-4: 20 %, after 12 epochs |",
        "| A server that sees only the sum of ten clients | LeNet: not measured yet |",
    ):
        assert row in text
    cost = "57.0 → 47.0 % on a ResNet20-1 after 20 epochs, 66.5 → 62.0 % after 60, 72.0 → 64.0 % on a ResNet20-4 after 12."
    assert f"**What it costs in accuracy:** {cost}\n" in text


def test_other_pages_fill_in_what_they_measured(tmp_path):
    measured(tmp_path)
    federation = {
        "sum, first round": shares(0.5, 0.2, photographs=30),
        "server, last round": shares(0.97, 0.96, photographs=30) | {"rounds": 300},
    }
    exports(tmp_path, "ext9_collaborative", {"found": federation}, dataset="cifar10")
    named = {"batch of": {"2": 1.0, "32": 0.75}, "prune": {"0.99": 0.5}}
    exports(tmp_path, "line_up", {"found": {}, "named": named})
    exports(tmp_path, "claim4_efficiency", {"time": {"hybrid": 0.0066}})
    by_the_rule = {"none": 150, "hybrid": 45, "attacks": 300}
    hits = {"none": 300, "hybrid": 285, "attacks": 300}
    best = {"LeNet": {"hits": hits}, "ResNet20-1": {"by the rule": by_the_rule}}
    exports(tmp_path, "best_answer", {"networks": best})
    text = advice(tmp_path)
    best["LeNet"]["trained"] = {"none": 297, "hybrid": 276, "attacks": 300}
    exports(tmp_path, "best_answer", {"networks": best})
    late = advice(tmp_path)
    assert "over | LeNet: 99 %; of a federation 97 %<br>" in late
    assert "| LeNet: 92 %; of a federation 96 %<br>" in late
    assert "its ResNet20-1 and the trained LeNets by the one that was best on each side" in late
    assert "<br>ResNet20-1: 50 %<br>ResNet20-4: 90 % |" in text
    assert "<br>ResNet20-1: 15 %<br>ResNet20-4: 60 % |" in text
    assert "| A server that sees only the sum of ten clients | LeNet: 50 % | LeNet: 20 % |" in text
    assert "Transforming takes 0.7 % of an epoch's time." in text
    assert "| LeNet: not measured yet; of a federation 97 %<br>" in text
    assert "its last round (300) in the second row" in text
    assert "recognizes it in the gradient of a batch of 32 in 75 % of cases" in text


def test_what_drawn_images_say_is_no_advice(tmp_path):
    measured(tmp_path)
    summed = {"sum, first round": shares(0.5, 0.2, photographs=30)}
    exports(tmp_path, "ext9_collaborative", {"found": summed}, dataset="shapes")
    assert "only the sum of ten clients | LeNet: not measured yet" in advice(tmp_path)


def test_what_the_results_deny_is_no_advice(tmp_path):
    measured(tmp_path, hidden=0.25)
    with refused("a text says 'Not as your only protection.'"):
        advice(tmp_path)
