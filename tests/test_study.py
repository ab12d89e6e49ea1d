"""Kept runs: what a request is, what a key holds, what is read and what is computed."""

import dataclasses

import pytest
import torch
from torch import nn

from atsbook.attackers import Undone
from atsbook.evidence.archive import Archive
from atsbook.experiment import AttackRequest
from atsbook.functions import NotebookFunction
from atsbook.networks import ModelRequest
from atsbook.pool import schedule
from atsbook.requests.scoring import ScoreRequest
from atsbook.runs import study as kept_runs
from atsbook.runs.study import Handle, Study, check_parameters
from atsbook.store import Store
from atslib.attacks import ATTACKS
from atslib.clients.training import TrainConfig
from atslib.errors import AtsError, NotKept

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
NO_STEPS = {"attack": "adam-cosine", "images": 2}
FEW = {"attack": "adam-cosine", "steps": 2, "images": 2}
SHORT = {"train": TrainConfig(epochs=1), "fraction": 0.002}


@pytest.fixture
def study(tmp_path):
    return Study("smoke", store=tmp_path / "store")


def made(study, *handles):
    """Make requests in this process, which is faster than workers for so little."""
    for handle in handles:
        for request in (*handle.request.needs, handle.request):
            request.make(study._own, CPU)


# --- requests ---------------------------------------------------------------------------------------------------------


def test_requests_are_those_that_pages_have_always_kept(study):
    network = study.network("convnet-4", train=TrainConfig(policy="3", epochs=2), fraction=0.5)
    model = ModelRequest(
        dataset="shapes",
        model="convnet-4",
        fraction=0.5,
        train=TrainConfig(policy="3", epochs=2),
        seed=0,
    )
    assert network.request == model
    run = study.attack(
        network, policy="3-1-7", draw=2, attack="adam-cosine", steps=7, images=range(1, 4)
    )
    attack = dataclasses.replace(ATTACKS["adam-cosine"], steps=7)
    expected = AttackRequest(
        model=model, policy="3-1-7", attack=attack, first=1, last=4, frames=0, seed=2
    )
    assert run.request == expected
    assert study.store.path(run.request.kind, run.request) == study.store.path("attack", expected)
    each = study.attack(network, attack="adam-cosine", images=2, every=True)
    assert each.request.every
    assert (
        dataclasses.replace(each.request, every=False) == study.attack(network, **NO_STEPS).request
    )
    undone = Undone(inner=attack, images="shapes", crop_flip=True)
    named = study.attack(network, policy="3-1-7", attack=undone, images=2)
    assert (named.request.attack, named.request.kind) == (undone, "attack-Undone")
    scores = study.scores(network, ["", "3"], images=2)
    assert scores.request == ScoreRequest(model=model, policies=("", "3"), images=2, points=4)
    assert run == Handle(expected, Study("smoke", store=study.store.root))  # wherever it is kept


def test_what_cannot_be_meant_is_refused_with_what_can(study):
    network = study.network("lenet")
    refused = [
        (lambda: study.network("lenett"), "lenett"),
        (lambda: study.network("lenet", train="3-1-7"), "TrainConfig"),
        (lambda: study.network(3), "3 must be a name"),
        (lambda: study.attack("lenet"), "network='lenet'"),
        (lambda: study.attack(network, attack="adam"), "attack 'adam' is unknown"),
        (lambda: study.attack(network, policy="99"), "99"),
        (lambda: study.attack(network, images=range(0, 4, 2)), "must be a range"),
        (lambda: study.attack(network, images=0), "must be a range"),
        (lambda: study.attack(network, images=10**6), "has 1000 test images"),
        (lambda: study.attack(network, steps=0), "steps=0"),
        (lambda: study.attack(network, attack=guess, steps=3), "has no steps"),
        (lambda: study.scores(network, [""], images=range(1, 3)), "begin at 0"),
        (lambda: study[network.request], "request="),
        (lambda: Study("large"), "profile 'large' is unknown"),
        (lambda: Study("smoke", "cifr10"), "dataset 'cifr10' is unknown"),
    ]
    for call, words in refused:
        with pytest.raises(AtsError, match=words):
            call()


KINDS = {"profile": str, "images": int, "share": float}
# As Python up to 3.13 keeps the annotations of a cell, and as 3.14 does.
ANNOTATED = {
    "values": {"__annotations__": KINDS},
    "a function": {"__annotate__": lambda form: KINDS, "__conditional_annotations__": {0, 1, 2}},
}


@pytest.mark.parametrize("how", ANNOTATED)
def test_parameters_that_a_notebook_does_not_have_are_refused(how):
    cell = ANNOTATED[how] | {
        "In": [],
        "_": 3,
        "torch": torch,
    }
    cell |= {"profile": "smoke", "images": None, "share": None}
    check_parameters(cell)
    check_parameters(cell | {"images": 8, "share": 1})
    for wrong, words in (
        ({"draws": 3}, "parameter draws; .* profile, images, share"),
        ({"images": "8"}, "images='8' must be of type int"),
        ({"images": True}, "images=True must be of type int"),
        ({"images": 0}, "images=0 must be at least 1"),
    ):
        with pytest.raises(AtsError, match=words):
            check_parameters(cell | wrong)


def test_a_notebook_that_is_run_again_in_its_kernel_keeps_its_parameters():
    later = {"answer": "a sentence", "TITLES": {"lenet": "LeNet"}}
    own = {"__name__": "__main__", "__annotations__": {"images": int}, "images": 3}
    check_parameters(own)
    check_parameters(own | later)
    with pytest.raises(AtsError, match="images='many' must be of type int"):
        check_parameters(own | later | {"images": "many"})


# --- what a notebook writes itself ------------------------------------------------------------------------------------

SHADE = 0.5


def shade():
    return SHADE


def guess(seen, *, rng):
    """The same grey image for every gradient."""
    return torch.full((len(seen), *seen.shape), shade())


class Small(nn.Module):
    def __init__(self, num_classes, channels, side):
        super().__init__()
        self.layer = nn.Linear(channels * side * side, num_classes)

    def forward(self, images):
        return self.layer(images.flatten(1))


@dataclasses.dataclass(frozen=True)
class Grey:
    level: float = 0.25

    def run(self, seen, *, rng):
        return torch.full((len(seen), *seen.shape), self.level)


def table_of_policies():
    return {"policies": UNHOLDABLE}


UNHOLDABLE = object()


def test_the_key_of_a_function_holds_its_helpers_and_its_constants(monkeypatch):
    before = NotebookFunction(guess)
    assert "return SHADE" in before
    assert "SHADE = 0.5" in before
    assert NotebookFunction(guess) == before
    monkeypatch.setitem(globals(), "SHADE", 0.75)
    assert NotebookFunction(guess) != before
    assert NotebookFunction(Small) != before
    assert "class Small" in NotebookFunction(Small)


def test_a_function_that_uses_what_no_key_can_hold_is_refused():
    with pytest.raises(AtsError, match="table_of_policies uses UNHOLDABLE, a object"):
        NotebookFunction(table_of_policies)


def test_a_network_and_an_attack_of_ones_own_are_requests_as_any_other(study):
    network = study.network(Small)
    assert network.request.model == "Small"
    runs = {
        "function": study.attack(network, attack=guess, images=2),
        "object": study.attack(network, attack=Grey(0.5), images=2),
        "other object": study.attack(network, attack=Grey(0.1), images=2),
        "class": study.attack(network, attack=Grey, images=2),
        "preset": study.attack(network, **FEW),
    }
    assert len({study.store.path(run.request.kind, run.request) for run in runs.values()}) == len(
        runs
    )
    made(study, *runs.values())
    table = study.table(runs, ["attack"])
    assert len(table) == 2 * len(runs)
    means = table.groupby("attack")["psnr"].mean()
    assert means["function"] == means["object"] != means["other object"]
    same = study.network(Small).value, study.network(Small).value
    assert all(
        torch.equal(a, b) for a, b in zip(same[0].parameters(), same[1].parameters(), strict=True)
    )


def test_a_trained_network_of_ones_own_is_kept_under_its_source(study):
    network = study.network(Small, **SHORT)
    made(study, network)
    assert study.missing([network]) == []
    assert study.accuracies({"": network}, ["policy"]).columns.tolist() == [
        "policy",
        "accuracy",
        "train",
    ]
    assert "class Small" in study.store.facts(network.request)["config"]["build"]


@pytest.mark.process
def test_what_a_notebook_defines_reaches_workers(study, capsys):
    study.jobs = 1  # in a process of its own, however little it is
    network = study.network(Small)
    runs = {
        policy: study.attack(network, policy=policy, attack=guess, images=2) for policy in ("", "3")
    }
    table = study.table(runs, ["policy"])
    assert table["policy"].tolist() == ["none"] * 2 + ["3"] * 2
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("study: 1 of 2 done")]
    study.table(runs, ["policy"])
    assert capsys.readouterr().err == ""


def test_a_toy_run_says_first_that_it_proves_nothing_and_others_do_not(tmp_path, capsys):
    Study("smoke", store=tmp_path)
    assert capsys.readouterr().err == "A toy run on drawn images: it proves nothing.\n"
    Study("laptop", store=tmp_path)
    assert capsys.readouterr().err == ""


def test_what_takes_seconds_is_made_in_this_process(study, monkeypatch, capsys):
    def none(*_):
        raise AssertionError("a process was started")

    monkeypatch.setattr(schedule, "workers", none)
    run = study.attack(study.network("lenet", **SHORT), **FEW)
    threads = torch.get_num_threads()
    study.compute([run])
    assert torch.get_num_threads() == threads
    assert "in this process" in capsys.readouterr().err
    long = study.attack(study.network("lenet"), attack="adam-cosine", steps=4_800)
    with pytest.raises(AssertionError, match="a process was started"):
        study.compute([long])


# --- read or computed -------------------------------------------------------------------------------------------------


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A study whose evidence holds an attack, its network and another network's accuracy, and whose
    store is empty.
    """
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    first = Study("smoke", store=tmp_path / "first")
    used = first.network("lenet", **SHORT)
    alone = first.network("lenet", train=TrainConfig(policy="3", epochs=1), fraction=0.002)
    run = first.attack(used, **FEW)
    made(first, run, alone)
    Archive(tmp_path / "results").write(Store(tmp_path / "first"), embedded=True)
    return Study("smoke", store=tmp_path / "second"), used, alone, run


def test_what_ships_is_read_and_only_what_is_new_is_computed(shipped):
    study, used, alone, run = shipped
    asked = [Handle(each.request, study) for each in (used, alone, run)]
    assert study.missing(asked) == []
    assert (
        study.table({"": asked[2]}, ["policy"])["psnr"].tolist()
        == run.value["psnr"].double().tolist()
    )
    assert len(study.accuracies({"": asked[0], "3": asked[1]}, ["policy"])) == 2
    assert not list(study._own.entries())  # nothing was copied
    new = study.attack(asked[0], policy="3", **FEW)
    assert study.missing([asked[2], new]) == [
        new.request
    ]  # its network has its weights in the evidence
    beyond = study.attack(asked[1], policy="3", **FEW)
    assert study.missing([beyond]) == [
        alone.request,
        beyond.request,
    ]  # of this one only the accuracy ships
    study.compute([new])
    assert {facts["kind"] for _, facts in study._own.entries()} == {"model", "attack"}
    assert study.missing([new]) == []


def test_the_weights_that_ship_are_those_of_the_network(shipped):
    study, used, *_ = shipped
    mine, theirs = (request.value.state_dict() for request in (Handle(used.request, study), used))
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_plan_names_what_is_missing_and_a_dry_run_ends_there(study, monkeypatch, capsys):
    network = study.network("lenet", **SHORT)
    run = study.attack(network, **FEW)
    lines = study.plan().splitlines()
    assert lines[0] == "2 requests to compute:"
    assert run.title in lines[2]
    assert lines[3].startswith("about ")
    monkeypatch.setattr(study, "_dry", True)
    with pytest.raises(NotKept, match="2 results are missing"):
        run.value  # noqa: B018
    assert run.title in capsys.readouterr().err
    assert not list(study._own.entries())


def test_a_budget_that_is_spent_begins_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("ATS_BUDGET", "0")
    study = Study("smoke", store=tmp_path / "store")
    run = study.attack(study.network("lenet"), **FEW)
    with pytest.raises(NotKept, match="1 results are missing; run again"):
        study.compute([run])
    assert not list(study._own.entries())


def test_ranks_for_a_server_that_knows_the_policy_stand_in_the_table(study):
    network = study.network("lenet")
    runs = {policy: study.attack(network, policy=policy, **FEW) for policy in ("", "3", "7")}
    made(study, *runs.values(), study.found(runs["3"]))
    table = study.table(runs, ["policy"], policy_known=["", "3"])
    ranks = study.found(runs["3"]).value["rank_knowing"].tolist()
    assert table[table["policy"] == "3"]["rank_knowing"].tolist() == ranks
    bare = table[table["policy"] == "none"]
    assert bare["rank_knowing"].tolist() == bare["rank_original"].tolist()
    assert table[table["policy"] == "7"]["rank_knowing"].isna().all()


def test_scores_have_a_row_per_policy_and_image(study):
    scores = study.scores(study.network("lenet"), ["", "3"], images=2)
    made(study, scores)
    table = study.table({"untrained": scores}, ["network"])
    assert table.groupby("policy", sort=False).size().to_dict() == {"none": 2, "3": 2}
    wide = (
        table.pivot(index="policy", columns="image", values="score").loc[["none", "3"]].to_numpy()
    )
    assert wide.tolist() == scores.value["scores"].double().tolist()


def test_results_on_a_gpu_are_made_in_this_process(monkeypatch):
    seen = {}
    monkeypatch.setattr(
        kept_runs, "compute", lambda requests, store, device, *rest: seen.update(device=device)
    )
    monkeypatch.setattr(kept_runs, "device_of", lambda name: torch.device("cuda"))
    study = Study("smoke")
    with pytest.raises(NotKept):
        study.compute([study.attack(study.network("lenet"), **FEW)])
    assert seen["device"] == "cuda"


def test_a_function_of_the_notebook_measures_a_network_once_and_is_keyed_by_its_source(study):
    def size(net, most):
        return {"parameters": torch.tensor([p.numel() for p in net.parameters()][:most])}

    def first(net, most):
        return {"parameters": torch.tensor([p.numel() for p in net.parameters()][:1])}

    network = study.network("convnet-4")
    request = study.call(size, network, most=2)
    made(study, request)
    expected = [parameter.numel() for parameter in network.value.parameters()][:2]
    assert request.value["parameters"].tolist() == expected
    assert study.missing([request]) == []
    assert study.missing([study.call(size, network, most=3)])
    assert study.missing([study.call(first, network, most=2)])


def test_each_epoch_of_a_training_is_a_row(study):
    trained = study.network("convnet-4", train=TrainConfig(epochs=2), fraction=0.02)
    made(study, trained)
    history = study.histories({"": trained}, ["policy"])
    assert history["epoch"].tolist() == [1, 2]
    assert set(history["policy"]) == {"none"}
    assert history["accuracy"].between(0, 100).all()
    assert (history["seconds"] > 0).all()


def test_what_attacks_tell_of_photographs_stands_in_their_table(study):
    run = study.attack(study.network("convnet-4"), policy="3-1-7", **FEW)
    made(study, run, study.outcomes(run))
    table = study.table({"3-1-7": run}, ["policy"], outcomes=True)
    told = study.table({"3-1-7": study.outcomes(run)}, ["policy"])
    assert table["bits"].tolist() == told["bits"].tolist()
    assert table["gain_told"].tolist() == told["gain"].tolist()
    assert table["gain"].tolist() != told["gain"].tolist()  # that is over another guess


def test_outcomes_of_an_attack_are_rows_of_a_table(study):
    network = study.network("lenet")
    runs = {policy: study.attack(network, policy=policy, **FEW) for policy in ("", "3")}
    asked = {policy: study.outcomes(run) for policy, run in runs.items()}
    made(study, *runs.values(), *asked.values())
    table = study.table(asked, ["policy"])
    assert table.groupby("policy").size().to_dict() == {"3": 2, "none": 2}
    assert (table["found"] == (table["rank"] == 1)).all()
    own = table[table["policy"] == "3"]
    assert own["bits"].tolist() == asked["3"].value["bits"].tolist()
    assert (own["psnr"] - runs["3"].value["psnr"].numpy()).abs().max() < 1e-4


def test_several_rounds_are_a_result_of_their_own(study):
    network = study.network("lenet")
    one, four = (study.attack(network, policy="3", rounds=n, **FEW) for n in (1, 4))
    assert one != four
    with pytest.raises(AtsError, match="rounds=0"):
        study.attack(network, rounds=0, **FEW)
