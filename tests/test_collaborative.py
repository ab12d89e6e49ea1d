"""Federations in one process, what their server sees under attack, and the page's rule."""

import copy
import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from checks import refused
from test_pilots import cell
from test_rules import functions

from atsbook.evidence.archive import Archive, request_of
from atsbook.findings.federations import FEDERATION, last_round, policy_changes
from atsbook.findings.result import NO_POLICY
from atsbook.findings.statistics import interval
from atsbook.findings.verdicts import guards
from atsbook.requests.collaborative import (
    FederationOutcomes,
    FederationRequest,
    photographs,
)
from atsbook.requests.timing import TimingRequest
from atsbook.runs.study import Study
from atsbook.store import Store
from atsfed import Federation, answer
from atsfed.federation import taken, used
from atsfed.peers import as_seen, exchange, ring
from atsfed.rounds import accuracy, rounds
from atslib import observe, reconstruct
from atslib.attacks import ATTACKS
from atslib.clients.prepare import to_images
from atslib.clients.sums import summed
from atslib.clients.updates import LocalTraining
from atslib.clients.view import Observed, ThreatModel
from atslib.measures.found import rank
from atslib.measures.guesses import guess_knowing_draw
from atslib.measures.metrics import psnr

pytestmark = [pytest.mark.federated, pytest.mark.usefixtures("one_thread")]
CPU = torch.device("cpu")
SMALL = Federation(dataset="shapes", model="lenet-4", clients=3, batch=2, rounds=3, fraction=0.1)


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_what_is_dealt_out_and_what_is_held_out_are_the_whole_and_share_nothing():
    whole = Federation(dataset="shapes", split="test", clients=3, fraction=1.0)
    dealt = [SMALL.shard(client) for client in range(3)]
    rest = SMALL.held_out()
    both = torch.cat([*(part.pixels for part in dealt), rest.pixels]).flatten(1)
    assert len(both) == 10 * len(torch.cat([part.labels for part in dealt]))
    assert len(both.unique(dim=0)) == len(both)
    assert len(whole.held_out()) == 0
    assert sum(len(whole.shard(client)) for client in range(3)) != len(both)  # another split


def test_federations_that_differ_in_what_is_shared_deal_out_alike():
    """A larger batch needs larger shards where they are uneven, and only there."""
    other = dataclasses.replace(SMALL, defense="3-1-7", model="lenet", rounds=1, batch=20)
    assert other.shard(1) is SMALL.shard(1)
    for changes in ({"seed": 1}, {"clients": 2}, {"fraction": 0.2}, {"split": "test"}):
        apart = dataclasses.replace(SMALL, **changes).shard(1).pixels
        assert not torch.equal(apart, SMALL.shard(1).pixels), changes
    uneven = [dataclasses.replace(SMALL, alpha=0.1, batch=batch) for batch in (1, 20)]
    assert uneven[0].shard(1) is not uneven[1].shard(1)


def test_uneven_shards_have_a_whole_batch_each():
    skewed = dataclasses.replace(SMALL, alpha=0.1, batch=20)
    assert min(len(skewed.shard(client)) for client in range(3)) >= 20


def test_rounds_of_gradients_are_plain_steps_on_all_images():
    sent = [(weights(model), seen) for model, seen in rounds(SMALL)]
    assert [len(seen) for _, seen in sent] == [3, 3, 3, 0]
    model = SMALL.network()
    for number in (1, 2, 3):
        torch.testing.assert_close(sent[number - 1][0], weights(model), rtol=0, atol=1e-6)
        parts = [taken(SMALL, client, number) for client in range(3)]
        pixels, labels = (torch.cat(each) for each in zip(*parts, strict=True))
        optimizer = torch.optim.SGD(model.parameters(), lr=SMALL.lr)
        optimizer.zero_grad()
        F.cross_entropy(model(to_images(pixels)), labels).backward()
        optimizer.step()
    torch.testing.assert_close(sent[3][0], weights(model), rtol=0, atol=1e-6)


def test_rounds_of_local_training_are_the_mean_of_what_each_client_ends_at():
    local = dataclasses.replace(SMALL, local=LocalTraining(epochs=2, lr=0.2), rounds=1)
    start, ends = local.network(), []
    for client in range(3):
        pixels, labels = taken(local, client, 1)
        own = copy.deepcopy(start)
        optimizer = torch.optim.SGD(own.parameters(), lr=0.2)
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(own(to_images(pixels)), labels).backward()
            optimizer.step()
        ends.append(weights(own))
    *_, (result, _) = rounds(local)
    torch.testing.assert_close(weights(result), torch.stack(ends).mean(0), rtol=0, atol=1e-6)


def test_in_train_mode_clients_and_tests_use_the_statistics_of_their_batches():
    both = {
        mode: dataclasses.replace(SMALL, model="convnet-4", victim=mode, batch=4, lr=0.5)
        for mode in ("eval", "train")
    }
    images = SMALL.held_out()[:200]
    for mode, federation in both.items():
        *_, (model, _) = rounds(federation)
        plain = federation.network().train(mode == "train")
        with torch.no_grad():
            for ours, theirs in zip(plain.parameters(), model.parameters(), strict=True):
                ours.copy_(theirs)
            guesses = plain(to_images(images.pixels)).argmax(1)
        assert accuracy(model, images) == pytest.approx(
            100 * float((guesses == images.labels).float().mean())
        )
        seen = answer(federation, federation.network(), 0, 1)
        assert (seen.threat.victim, seen.updates[0].statistics) == (mode, {})


@pytest.mark.parametrize("local", [None, LocalTraining(lr=0.3)])
def test_used_images_are_those_behind_the_answer(local):
    own = dataclasses.replace(SMALL, defense="3-1-7", local=local, crop_flip=True)
    model, pixels = own.network(), used(own, 1, 2)
    assert not torch.equal(pixels, taken(own, 1, 2)[0])
    plain = observe(model, to_images(pixels), taken(own, 1, 2)[1], threat=own.threat(2)).gradients
    scale = 1.0 if local is None else -0.3
    torch.testing.assert_close(answer(own, model, 1, 2).gradients, scale * plain, rtol=0, atol=1e-6)


def test_answers_beside_each_other_are_attacked_as_each_alone():
    model, attack = SMALL.network(), dataclasses.replace(ATTACKS["annealed-lenet"], steps=3)
    answers = [answer(SMALL, model, client, 1) for client in range(3)]
    start = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    together = reconstruct(Observed.beside(answers), attack, rng=0, start=start)
    alone = [
        reconstruct(one, attack, rng=0, start=part)
        for one, part in zip(answers, start.split(2), strict=True)
    ]
    torch.testing.assert_close(
        together.images, torch.cat([each.images for each in alone]), rtol=0, atol=1e-3
    )
    assert torch.equal(together.labels, torch.cat([each.labels for each in alone]))


def test_only_answers_that_one_attack_can_take_stand_beside_each_other():
    model = SMALL.network()
    one, other = (answer(SMALL, model, client, 1) for client in (0, 1))
    moved = answer(SMALL, dataclasses.replace(SMALL, seed=1).network(), 1, 1)
    trained = answer(dataclasses.replace(SMALL, local=LocalTraining()), model, 1, 1)
    more = answer(dataclasses.replace(SMALL, batch=3), model, 1, 1)
    known = observe(
        model, torch.rand(2, 3, 32, 32), torch.tensor([0, 1]), threat=ThreatModel(batch=2)
    )
    with refused("Observed.beside: no view is given"):
        Observed.beside([])
    for odd, words in (
        (moved, "network"),
        (trained, "kind of update"),
        (more, "threat"),
        (known, "threat"),
    ):
        with refused(f"Observed.beside: views 0 and 2 differ in {words}"):
            Observed.beside([one, other, odd])


def test_what_an_attacker_knows_of_each_client_stands_beside_the_others():
    threat = ThreatModel(defense="draws", victim="train")
    images, labels = (
        torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)),
        torch.arange(4),
    )
    model = dataclasses.replace(SMALL, model="convnet-4").network()
    parts = [
        observe(model, images[rows], labels[rows], threat=threat, defense="3-1-7+43-18-18", rng=row)
        for row, rows in enumerate((slice(0, 1), slice(1, 4)))
    ]
    both = Observed.beside(parts)
    assert torch.equal(both.labels.flatten(), labels)
    for k, rows in enumerate((slice(0, 1), slice(1, 4))):
        own = both.take(rows)
        assert torch.equal(own.gradients, parts[k].gradients)
        assert all(
            torch.equal(own.statistics[name], value) for name, value in parts[k].statistics.items()
        )
        for ours, theirs in zip(own.knows.draws, parts[k].knows.draws, strict=True):
            assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


def test_a_request_keeps_accuracies_and_what_attacks_find_of_every_client(tmp_path):
    attack = dataclasses.replace(ATTACKS["annealed-lenet"], steps=5)
    own = dataclasses.replace(SMALL, defense="3-1-7")
    request = FederationRequest(federation=own, measured=(0, 3), attacked=(0, 2), attack=attack)
    store, archive = Store(tmp_path / "store"), Archive(tmp_path / "requests")
    made = request.make(store, CPU)
    assert archive.write(store, embedded=True) == 1
    (line,) = archive.entries().values()
    assert request_of(line) == request
    again = archive.read(store.path(request.kind, request).stem)
    assert {name: value.tolist() for name, value in again.tensors.items()} == {
        name: value.tolist() for name, value in made.tensors.items()
    }
    *_, (model, _) = rounds(own)
    assert made["accuracy"].tolist() == pytest.approx([accuracy(own.network(), own.held_out()[:1000]),
                                                       accuracy(model, own.held_out()[:1000])])  # fmt: skip
    for name in ("psnr", "floor", "rank_target", "rank_original", "rank_knowing", "label", "named"):
        assert made[name].shape == (2, 6), name
    labels = torch.cat([taken(own, client, 3)[1] for client in range(3)])
    assert made["label"][1].tolist() == labels.tolist()
    assert made["rank_knowing"].min() >= 1
    assert made["rank_knowing"].max() <= 100


def test_a_perfect_reconstruction_is_found_whatever_its_place_in_the_batch(tmp_path, monkeypatch):
    from atsbook.requests import collaborative

    def perfect(seen, attack, *, rng):
        result = reconstruct(seen, dataclasses.replace(attack, steps=1), rng=rng)
        truth = torch.cat([to_images(used(own, client, 1)).flip(0) for client in range(3)])
        return dataclasses.replace(
            result, images=truth, labels=result.labels * 0
        )  # in another order, labels unknown

    own = dataclasses.replace(SMALL, defense="3-1-7", rounds=1)
    request = FederationRequest(
        federation=own, measured=(), attacked=(0,), attack=ATTACKS["annealed-lenet"]
    )
    monkeypatch.setattr(collaborative, "reconstruct", perfect)
    store = Store(tmp_path / "store")
    made = request.make(store, CPU)
    assert made["psnr"].isinf().all()
    assert (made["rank_target"] == 1).all()
    told = FederationOutcomes(attacks=request).make(store, CPU)
    assert told["psnr"].isinf().all()
    assert (rank(told["alike"][0].unsqueeze(2), told["truth"][0]) == 1).all()


@pytest.mark.parametrize("policy", ["", "3-1-7+43-18-18"])
def test_photographs_and_what_is_drawn_for_them_make_what_clients_use(policy):
    own = dataclasses.replace(SMALL, defense=policy)
    for client, number in itertools.product(range(3), (1, 2)):
        pixels, labels, drawn = photographs(own, client, number)
        assert torch.equal(drawn.apply(pixels), used(own, client, number))
        assert torch.equal(labels, taken(own, client, number)[1])
        shard = own.shard(client).pixels
        assert all((shard == each).flatten(1).all(1).any() for each in pixels)


def test_what_a_federation_gives_away_is_what_the_measures_say(tmp_path):
    attack = dataclasses.replace(ATTACKS["annealed-lenet"], steps=5)
    own = dataclasses.replace(SMALL, defense="3-1-7", batch=1)
    request = FederationRequest(federation=own, measured=(), attacked=(0, 2), attack=attack)
    store, archive = Store(tmp_path / "store"), Archive(tmp_path / "requests")
    made = request.make(store, CPU)
    told = FederationOutcomes(attacks=request).make(store, CPU)
    archive.write(store, embedded=True)
    assert FederationOutcomes(attacks=request) in [
        request_of(line) for line in archive.entries().values()
    ]
    assert torch.equal(told["psnr"], made["psnr"])
    _, labels, drawn = photographs(own, 1, 3)
    others = own.held_out()
    guess = guess_knowing_draw(drawn, others.pixels, others.labels, labels=labels)
    of_guess = psnr(guess, to_images(used(own, 1, 3)))
    torch.testing.assert_close(told["gain"][1, 1], (made["psnr"][1, 1] - of_guess[0]))
    assert told["alike"].shape == (2, 3, 100)
    place = torch.zeros(2, 3, 100).scatter(2, told["truth"].unsqueeze(2), 1.0)
    assert (place.sum(2) == 1).all()
    assert told["frame"].isfinite().all()


# --- sums and neighbours -------------------------------------------------------------------------------------


def test_the_sum_is_the_gradient_of_all_images_and_can_be_attacked():
    uneven = [
        answer(dataclasses.replace(SMALL, batch=size), SMALL.network(), client, 1)
        for client, size in enumerate((1, 2, 4))
    ]
    parts = [
        taken(dataclasses.replace(SMALL, batch=size), client, 1)
        for client, size in enumerate((1, 2, 4))
    ]
    pixels, labels = (torch.cat(each) for each in zip(*parts, strict=True))
    whole = observe(SMALL.network(), to_images(pixels), labels, threat=SMALL.threat(7))
    both = summed(uneven)
    torch.testing.assert_close(both.gradients, whole.gradients, rtol=0, atol=1e-6)
    assert (both.threat, both.shape, both.labels, len(both)) == (whole.threat, whole.shape, None, 1)
    found = reconstruct(both, dataclasses.replace(ATTACKS["annealed-lenet"], steps=2), rng=0)
    assert found.images.shape == (7, 3, 32, 32)


def test_what_is_no_sum_of_one_round_is_refused():
    one = answer(SMALL, SMALL.network(), 0, 1)
    trained = answer(dataclasses.replace(SMALL, local=LocalTraining()), SMALL.network(), 1, 1)
    with refused("gradients and differences of weights cannot be summed"):
        summed([one, trained])
    for views in (
        [],
        [Observed.beside([one, one])],
        [dataclasses.replace(one, updates=one.updates * 2)],
    ):
        with refused("one answer of each client in one round"):
            summed(views)


def test_where_everyone_is_a_neighbour_all_networks_are_the_servers():
    everyone = [[other for other in range(3) if other != k] for k in range(3)]
    assert [list(own) for own in ring(3)] == everyone
    for local in (None, LocalTraining(lr=0.2)):
        own = dataclasses.replace(SMALL, local=local, defense="3-1-7")
        for (model, seen), (networks, sent) in zip(
            rounds(own), exchange(own, everyone), strict=True
        ):
            for network in networks:
                torch.testing.assert_close(weights(network), weights(model), rtol=0, atol=1e-6)
            for ours, theirs in zip(seen, sent, strict=True):
                torch.testing.assert_close(ours.gradients, theirs.gradients, rtol=0, atol=1e-5)


def test_on_a_ring_a_network_moves_by_its_own_answer_and_its_neighbours_alone():
    own = dataclasses.replace(SMALL, clients=5, rounds=1)
    assert ring(5)[0] == (1, 4)
    (_, sent), (networks, _) = exchange(own, ring(5))
    for k in range(5):
        near = torch.stack([sent[other].gradients[0] for other in (k, *ring(5)[k])]).mean(0)
        torch.testing.assert_close(
            weights(networks[k]), weights(own.network()) - own.lr * near, rtol=0, atol=1e-6
        )
    assert not torch.equal(weights(networks[0]), weights(networks[2]))
    seen = as_seen(sent[0], networks[1])
    assert torch.equal(weights(seen.model), weights(networks[1]))
    assert torch.equal(seen.gradients, sent[0].gradients)


@pytest.mark.parametrize("neighbours", [ring(4), [[0], [1], [2]], [[1], [2], [3]]])
def test_neighbours_are_others_of_the_federation(neighbours):
    with refused("give each of 3 participants others by number"):
        next(exchange(SMALL, neighbours))


@pytest.mark.parametrize("view", ["sum", "neighbour"])
def test_a_request_may_see_the_sum_or_a_neighbour(view, tmp_path):
    attack = dataclasses.replace(ATTACKS["annealed-lenet"], steps=3)
    own = dataclasses.replace(SMALL, clients=4, rounds=2)
    request = FederationRequest(federation=own, measured=(2,), attacked=(0, 1), attack=attack)
    plain, other = (
        u.make(Store(tmp_path / "store"), CPU)
        for u in (request, dataclasses.replace(request, view=view))
    )
    assert torch.equal(plain["label"], other["label"])
    assert torch.equal(plain["floor"], other["floor"])
    assert other["psnr"].shape == (2, 8)
    tests = own.held_out()[:1000]
    if view == "sum":
        assert torch.equal(plain["accuracy"], other["accuracy"])
    else:
        *_, (networks, _) = exchange(own, ring(4))
        mean = sum(accuracy(model, tests) for model in networks) / 4
        assert other["accuracy"].tolist() == pytest.approx([mean])
    with refused("FederationRequest.view 'all' is unknown"):
        dataclasses.replace(request, view="all")


# --- the page ------------------------------------------------------------------------------------------------


def table(*, bare=50.0, spread=0.5, **effects):
    """Last accuracies of nine federations for each policy, without a policy and with some."""
    noise = np.random.default_rng(0).normal(0, spread, (9, len(effects) + 1))
    rows = []
    for place in range(9):
        shards = ("equal", "Dirichlet 1.0", "Dirichlet 0.1")[place // 3]
        for k, (policy, effect) in enumerate(({NO_POLICY: 0.0} | effects).items()):
            names = ("convnet-16", "FedSGD", shards, policy, place % 3, "server")
            key = dict(zip(FEDERATION, names, strict=True))
            rows += [key | {"rounds": 0, "accuracy": 10.0}]
            rows += [key | {"rounds": 5, "accuracy": bare + place + effect + noise[place, k]}]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("effects", "status"),
    [
        ({"a": 0.0, "b": 1.0}, "reproduced"),
        ({"a": 0.0, "b": -5.0}, "partly"),
        ({"a": -4.0, "b": -5.0}, "not reproduced"),
        ({"a": -2.0, "b": -5.0}, "not reproduced"),
        ({"a": 0.0, "b": 0.0, "spread": 20.0}, "cannot tell"),
        ({"a": 0.0, "bare": 5.0}, "cannot tell"),
    ],
)
def test_the_rule_looks_at_what_a_policy_costs_and_at_how_sure_that_is(effects, status):
    known = {"policy_changes": policy_changes, "last_round": last_round, "guards": guards}
    judge = functions("ext9_collaborative", "def judge(", **known)["judge"]
    found, _, keep, cost, why = judge(table(**effects), 10)
    assert found == status
    assert bool(why) == (status == "cannot tell")
    if not why:
        assert (keep, cost) == {
            "reproduced": (2, 0),
            "partly": (1, 1),
            "not reproduced": (0, 2 if effects["a"] < -2 else 1),
        }[status]


def test_changes_are_between_federations_that_differ_in_the_policy_alone():
    change = policy_changes(table(a=-3.0, spread=0.0), ["network", "protocol"])
    row = change.loc["convnet-16", "FedSGD", "a"]
    assert (row["n"], row["mean"]) == (9, pytest.approx(-3.0))
    strict = policy_changes(table(a=-3.0), ["network"], by_seed=True).loc["convnet-16", "a"]
    wider = policy_changes(table(a=-3.0), ["network"]).loc["convnet-16", "a"]
    assert (strict["n"], wider["n"]) == (3, 9)
    assert strict["mean"] == pytest.approx(wider["mean"])


def asked(tmp_path, monkeypatch, profile):
    """What the notebook asks for, by the names of a federation; nothing is computed."""
    monkeypatch.setenv("ATS_STORE", str(tmp_path))
    space = {"profile": profile, "dataset": None, "steps": None, "seed": None, "Study": Study}
    space |= {"dataclasses": dataclasses, "itertools": itertools, "ATTACKS": ATTACKS}
    space |= {"Federation": Federation, "FederationRequest": FederationRequest}
    space |= {"LocalTraining": LocalTraining}
    exec(cell("ext9_collaborative", "places = {"), space)
    loop = cell("ext9_collaborative", "runs = {}\nfor place")
    exec(loop[: loop.index("study.compute(runs)")], space)
    return {key: run.request for key, run in space["runs"].items()}


def test_the_page_asks_for_every_federation_once_and_its_policies_are_paired(tmp_path, monkeypatch):
    requests = asked(tmp_path, monkeypatch, "laptop")
    assert len(requests) == len(set(requests.values())) == 4 * 3 * 4 * 3 + 2 * 2 * 3
    for (*place, policy, draw, view), request in requests.items():
        bare = requests[*place, NO_POLICY, draw, view]
        same = dataclasses.replace(request.federation, defense="")
        assert dataclasses.replace(request, federation=same) == bare
        assert request.federation.defense == ("" if policy == NO_POLICY else policy)
        assert (request.federation.seed, request.view) == (draw, view)
        last = request.federation.rounds
        attacked = (0, 1, 5, 20, last - 1) if place[0] == "lenet" else ()
        assert request.attacked == attacked
        assert request.measured[-1] == last
    toy = asked(tmp_path, monkeypatch, "smoke")
    assert len(toy) == 3 * 2 * 2
    assert {request.attacked for request in toy.values()} == {(0, 1)}


def test_the_clients_of_each_federation_are_split_at_their_own_middle():
    rows = [
        {"seed": seed, "client": client, "skew": seed + 0.1 * client, "shard": 10, "gain": 5.0 * seed + (client >= 5)}
        for seed in range(3) for client in range(10)
    ]  # fmt: skip
    halves = functions("ext9_collaborative", "def halves(", interval=interval)["halves"]
    found = halves(pd.DataFrame(rows))
    assert (found["even"], found["uneven"], found["change"]) == pytest.approx((5.0, 6.0, 1.0))
    assert (found["low"], found["high"]) == pytest.approx((1.0, 1.0))


def test_a_victim_or_split_that_is_none_is_refused():
    with refused("Federation.victim 'both' is unknown", "eval, train"):
        Federation(victim="both")
    with refused("Federation.split 'val' is unknown", "train, test"):
        Federation(split="val")


def test_a_clients_time_is_that_of_each_policy_and_its_answer_has_all_weights(tmp_path):
    request = TimingRequest(federation=SMALL, policies=("", "3-1-7"), repeats=2)
    store = Store(tmp_path / "store")
    made = request.make(store, CPU)
    assert int(made["weights"]) == len(weights(SMALL.network()))
    assert made["policy"].shape == (2,)
    assert float(made["answer"]) > float(made["policy"][0]) > 0
    assert torch.equal(request.make(store, CPU)["policy"], made["policy"])
