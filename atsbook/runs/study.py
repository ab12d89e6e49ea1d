"""Kept runs: what a notebook asks for, computed once and read from then on.

A `Study` turns a network, a policy and an attack into a *request*, a frozen description of one
result. Asking for its value computes it or reads it: from the user's own store, else from the
evidence that ships with the repository. Many requests are computed side by side, and a run that was
interrupted goes on where it was.

    study = Study("laptop")
    net = study.network("lenet")
    run = study.attack(net, policy="3-1-7", attack="annealed-lenet", steps=300, images=range(100))
    run.value["psnr"]
"""

import dataclasses
import datetime
import os
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from torch import Tensor, nn

from atsbook.evidence.reading import WithEvidence
from atsbook.experiment import AttackRequest, OutcomeRequest, guess_of
from atsbook.functions import (
    CallRequest,
    NotebookFunction,
    NotebookNetwork,
    WrittenAttack,
    has_no_text,
)
from atsbook.kept import Kept
from atsbook.networks import ModelRequest, dataset, trained
from atsbook.pool.schedule import compute, describe, plan, say
from atsbook.requests.outcomes import FoundRequest, RecognizedRequest
from atsbook.requests.scoring import ScoreRequest, SearchRequest, searched
from atsbook.runs.settings import PROFILES, parameters_among
from atsbook.runs.tables import image_rows, label, outcome_rows, picture_rows
from atsbook.store import Artifact, Store
from atslib.attacks import ATTACKS, GradientMatching
from atslib.clients.observe import ThreatModel
from atslib.clients.training import TrainConfig
from atslib.data.load import DATASETS, available, is_drawn, load
from atslib.errors import AtsError, NotKept, check_kind, check_whole, choose
from atslib.files import project_root
from atslib.models import build_model, device_of
from atslib.policies.policy import Hybrid, Policy, parse_policy
from atslib.scores.search import SearchConfig

LOG_PREFIX = "study: "  # how the lines begin that a study says while it computes
IMAGES = range(100)  # the first of the test set, as in both publications
# Of `Study.outcomes`, in the table of attacks
OUTCOME_COLUMNS = ("found", "bits", "frame", "gain_told")
OWN_PACKAGES = (
    "atslib.",
    "atsaudit.",
    "atsbook.",
)  # modules whose attacks are known by their fields, not by their source
CACHE_SIZE = 200  # results kept in memory; one of 100 attacks has some megabytes


@dataclasses.dataclass(frozen=True)
class Handle:
    """One result that a notebook asks for: a frozen description, whose value is computed or read
    when it is asked for.

    Attributes:
        request: what decides the result, all of it; equal requests are one result.
        study: where it is computed and kept.
    """

    request: Kept
    study: "Study" = dataclasses.field(compare=False, repr=False)

    @property
    def value(self) -> object:
        """The result: of a network the network itself, in eval mode, of anything else its tensors
        by name.
        """
        return self.study[self]

    @property
    def title(self) -> str:
        """The request in words."""
        return self.request.title


class Cost(NamedTuple):
    """What the results of a study took where they were made, in seconds."""

    requests: int
    seconds: float
    longest: float
    devices: tuple[str, ...]


# --- the study --------------------------------------------------------------------------------------------------------


class Study:
    """Requests of a notebook, where they are computed, and where their results are kept.

    Environment variables set what a notebook does not say: `ATS_STORE` (the folder or address of
    the results), `ATS_JOBS`, `ATS_SCHEDULER`, `ATS_BUDGET` (seconds) and `ATS_DRY_RUN` (say what
    would be computed, and stop there).

    Args:
        profile: smoke, laptop or full: the default data set, and the size that a notebook gives
            each.
        dataset: a name for `atslib.load`; None is the profile's.
        seed: of every random stream.
        store: a folder or an address; by default that of `Store`.
        device: where it runs; "auto" takes a GPU if there is one, and then computes in this
            process.
        jobs: results computed at once on this machine; by default one a core, or one on a GPU.
        scheduler: the address of a Dask scheduler.
    """

    def __init__(
        self,
        profile: str = "smoke",
        dataset: str | None = None,
        seed: int = 0,
        *,
        store: Path | str | None = None,
        device: str = "auto",
        jobs: int | None = None,
        scheduler: str | None = None,
    ):
        choose("profile", profile, PROFILES)
        self.profile = profile
        self.dataset = dataset or PROFILES[profile]["dataset"]
        choose("dataset", self.dataset, DATASETS)
        check_whole("seed", seed, 0)
        self.seed = seed
        self.device = device_of(device)
        environment = os.environ
        self.jobs = jobs or int(environment.get("ATS_JOBS") or 0) or None
        self.scheduler = scheduler or environment.get("ATS_SCHEDULER") or None
        budget = environment.get("ATS_BUDGET")
        self._ends = time.monotonic() + float(budget) if budget else None
        self._dry = bool(environment.get("ATS_DRY_RUN"))
        evidence = project_root() / "results"
        self.store = WithEvidence(store, evidence, say=lambda line: say(LOG_PREFIX + line))
        self._own = Store(self.store.address, say=self.store.say)
        if is_drawn(self.dataset) and not self._dry:
            # in the notebook alone: a run of the whole book passes on what begins with `LOG_PREFIX`
            say("A toy run on drawn images: it proves nothing.")
        self.asked: dict[Kept, None] = {}
        self._at_hand: dict[Kept, Artifact] = {}

    # requests

    def network(
        self,
        model: str | Callable[..., nn.Module],
        *,
        train: TrainConfig | None = None,
        fraction: float = 1.0,
        dataset: str | None = None,
        norm: str = "",
        step: int = 0,
        draw: int = 0,
    ) -> Handle:
        """A network: untrained, or at the end of a training, or at a `step` of it.

        Args:
            model: a name for `atslib.build_model`; or a class or function that is called with the
                number of classes, of channels and the side of the images, and makes a network.
            train: how it is trained, the policy among it; None: not at all.
            fraction: share of the training set, stratified.
            dataset: by default the study's.
            norm: another data set's constants in the first layer.
            draw: number of the draw of the weights.
        Raises:
            AtsError: an unknown name, or a training that is no `TrainConfig`.
        """
        if train is not None:
            check_kind(
                "train",
                train,
                TrainConfig,
                "an atslib.TrainConfig, or None for an untrained network",
            )
        name = dataset or self.dataset
        choose("dataset", name, DATASETS)
        fields = {"dataset": name, "fraction": float(fraction), "train": train}
        check_whole("draw", draw, 0)
        fields |= {"norm": norm, "step": step, "seed": self.seed + draw}
        if isinstance(model, str):
            build_model(model, 2)  # an unknown name is refused here, not in a worker
            return self._request(ModelRequest(model=model, **fields))
        if not callable(model):
            raise AtsError(
                f"network {model!r} must be a name such as lenet, or a function or class that makes one"
            )
        return self._request(
            NotebookNetwork(model=model.__name__, build=NotebookFunction(model), **fields)
        )

    def attack(
        self,
        network: Handle,
        *,
        policy: str | Policy | Hybrid = "",
        draw: int = 0,
        attack: object = "annealed-lenet",
        steps: int | None = None,
        images: range | int = IMAGES,
        threat: ThreatModel | None = None,
        defense: str = "",
        crop_flip: bool = True,
        frames: int = 0,
        rounds: int = 1,
        every: bool = False,
    ) -> Handle:
        """An attack on test images, each with a gradient of its own, after crop, flip and policy.

        Its value has `reconstruction`, `target` (what the client used) and `original` (the
        photograph), (B, C, H, W), and of each image `psnr` in dB, `ssim`, `mse`, `cost` and the
        ranks `rank_target` and `rank_original` among 100.

        Args:
            network: of `Study.network`.
            policy: as text, such as "3-1-7+43-18-18"; "" is none.
            draw: number of the draw of crop, flip, policy and start; the same number is the same
                for every policy, network and attack, so that comparisons are paired.
            attack: a key of `atslib.ATTACKS`, a `GradientMatching`, or a function `f(seen, *, rng)`
                or an object or class with such a method `run` of the notebook's own.
            steps: in place of the attack's own number.
            images: a range of test images, or how many of the first.
            threat: what the server sees and knows.
            defense: on the update, as text.
            crop_flip: random crop and flip before the policy.
            frames: iterates that are kept.
            rounds: how many the server watches; the policy draws anew in each, for the same
                photographs after the same crops and flips.
            every: keep `psnr_each`, `rank_each` and `cost_each`, (starts, B), of each start of an
                attack with several; `reconstruction` is that of the least cost.
        """
        model = self._described(network, ModelRequest, "network")
        name = policy if isinstance(policy, str) else str(policy)
        parse_policy(name)
        first, last = _rows(images)
        if last > (there := len(dataset(model.dataset, "test"))):
            raise AtsError(f"images={images}: {model.dataset} has {there} test images")
        check_whole("draw", draw, 0)
        check_whole("rounds", rounds, 1)
        return self._request(
            AttackRequest(
                model=model,
                policy=name,
                attack=_attack(attack, steps),
                first=first,
                last=last,
                crop_flip=crop_flip,
                threat=threat or ThreatModel(),
                defense=defense,
                frames=frames,
                seed=self.seed + draw,
                rounds=rounds,
                every=every,
            )
        )

    def scores(
        self,
        network: Handle,
        policies: Sequence[str | Policy | Hybrid],
        *,
        images: range | int = 64,
        points: int | None = None,
        variant: str = "fixed",
    ) -> Handle:
        """Privacy scores of the same test images under each policy; lower is meant to be more
        private.

        Its value has `scores` (policies, images) and the `curves` behind them (policies, images,
        points).

        Args:
            images: a range that begins at 0, or how many.
            points: of the curve; by default the profile's.
            variant: "fixed", or "code" as the authors' code computes it.
        """
        model = self._described(network, ModelRequest, "network")
        names = tuple(policy if isinstance(policy, str) else str(policy) for policy in policies)
        for name in names:
            parse_policy(name)
        first, last = _rows(images)
        if first:
            raise AtsError(f"images={images}: scores are of the first test images; begin at 0")
        points = points or PROFILES[self.profile].get("score_points", 21)
        request = ScoreRequest(
            model=model, policies=names, images=last, points=points, variant=variant, seed=self.seed
        )
        return self._request(request)

    def search(self, network: Handle, config: SearchConfig) -> Handle:
        """A search for policies on a semi-trained network (paper, Algorithm 1); its value is an
        `atslib.SearchResult`.

        Accuracy scores are of the same network before its training. All are on test images from
        number 200 on.
        """
        model = self._described(network, ModelRequest, "network")
        return self._request(SearchRequest(model=model, config=config, seed=self.seed))

    def call(
        self, function: Callable[..., dict[str, Tensor]], network: Handle, **arguments: object
    ) -> Handle:
        """What a function of the notebook measures of a network; its value is what that returns.

        Args:
            function: called with the network, in eval mode on the study's device, and the
                arguments; returns tensors by name. It is keyed by its source.
            arguments: numbers, texts and tuples of them.
        """
        request = CallRequest(
            model=self._described(network, ModelRequest, "network"),
            function=NotebookFunction(function),
            arguments=tuple(sorted(arguments.items())),
        )
        return self._request(request)

    def request(self, request: Kept) -> Handle:
        """The result of a request that is written out, such as `atsbook.requests.sweep.SweepRequest`: for what
        the methods here have no words for.
        """
        return self._request(request)

    def outcomes(self, run: Handle) -> Handle:
        """What an attack's images tell of the photographs, for a server that knows the policy.

        Its value has, of each photograph, `rank` among 100 of its class (1: found), `bits`, `psnr`,
        `gain` over a guess that knows label, policy and draw, and `frame`, all but the first in dB
        or bits; see `atsbook.experiment.OutcomeRequest`. `table` has a column `found` too.
        """
        return self._request(OutcomeRequest(attack=self._described(run, AttackRequest, "run")))

    def recognized(self, runs: Iterable[Handle]) -> Handle:
        """Where a network that knows pictures (features of an ImageNet network) ranks the
        photographs; it undoes nothing.

        Its value has `seen_rank` among 100 of the own class (1: recognized) and `seen_bits`, and
        `used_rank` and `used_bits` of what the client used, all (A, B): a row for each attack.

        Args:
            runs: attacks on the same photographs.
        """
        attacks = tuple(self._described(run, AttackRequest, "run") for run in runs)
        return self._request(RecognizedRequest(attacks=attacks))

    def found(self, run: Handle) -> Handle:
        """Where each photograph ranks among 100 for a server that knows the policy, but not what
        was drawn.

        Its value has `rank_knowing` (B,); 1 is found.
        """
        request = self._described(run, AttackRequest, "run")
        return self._request(FoundRequest.of(request))

    # values

    def __getitem__(self, handle: Handle) -> object:
        """The value of a request: of a network the network itself, of a search what it found, of
        anything else its tensors by name.
        """
        request = self._described(handle, object, "request")
        if isinstance(request, ModelRequest):
            if request.train:
                self.compute([handle], weights=True)
                self.store.copy_into_store(request)
            return trained(request, self._own, self.device)[0].eval()
        self.compute([handle])
        if isinstance(request, SearchRequest):
            self.store.copy_into_store(request.model)
            return searched(request, self.store, self.device)
        return self._artifact(request)

    def missing(
        self, requests: Iterable[Handle] | Mapping[object, Handle], *, weights: bool = False
    ) -> list[Kept]:
        """What must be computed for these requests: they themselves and what they need, each before
        what needs it.

        A network whose accuracy ships, but not its weights, is missing only where something new
        needs it.

        Args:
            weights: the requests are networks that are to be used, not only looked up.
        """
        requests = requests.values() if isinstance(requests, Mapping) else requests
        requests = list(
            dict.fromkeys(self._described(handle, object, "request") for handle in requests)
        )
        requests = [request for request in requests if request.is_kept]
        shipped = (
            []
            if weights
            else [request for request in requests if self.store.shipped(request.kind, request)]
        )
        return plan([request for request in requests if request not in set(shipped)], self.store)

    def compute(
        self,
        requests: Iterable[Handle] | Mapping[object, Handle] | None = None,
        *,
        weights: bool = False,
    ) -> None:
        """Compute what is missing, many results at once; one line says for each that is done how
        long the rest takes.

        Args:
            requests: by default all that this study was asked for.
            weights: as of `missing`.
        Raises:
            NotKept: something is missing, and this is a dry run or the budget of time is spent.
        """
        requests = (
            [Handle(request, self) for request in self.asked] if requests is None else requests
        )
        new = self.missing(requests, weights=weights)
        if not new:
            return
        if self._dry:
            for line in self._plan(new).splitlines():
                self.store.say(line)
            raise NotKept(f"{len(new)} results are missing; the plan above says which")
        for need in dict.fromkeys(need for request in new for need in request.needs):
            self.store.copy_into_store(need)
        compute(new, self._own, str(self.device), self.jobs, self._ends, self.scheduler)
        if left := self.missing(requests, weights=weights):
            raise NotKept(
                f"the budget is spent: {len(left)} results are missing; run again to go on"
            )

    def plan(self, requests: Iterable[Handle] | Mapping[object, Handle] | None = None) -> str:
        """What would be computed, one line each, and how long all of it may take.

        Args:
            requests: by default all that this study was asked for.
        """
        requests = (
            [Handle(request, self) for request in self.asked] if requests is None else requests
        )
        return self._plan(self.missing(requests))

    def _plan(self, requests: Sequence[Kept]) -> str:
        if not requests:
            return "nothing is missing"
        return describe(requests, str(self.device), self.jobs, self.scheduler)

    # tables

    def table(
        self,
        requests: Mapping[object, Handle],
        names: Sequence[str],
        *,
        policy_known: Sequence[str] = (),
        draw_known: bool = False,
        outcomes: bool = False,
        pictures: bool = False,
        blind: bool = True,
    ) -> pd.DataFrame:
        """One row per request and image, or per request, policy and image of scores; what is
        missing is computed first.

        Attacks have the columns `psnr`, `psnr_original`, `ssim`, `mse`, `cost`, `gain` (over the
        best guess of somebody who knows the policy and sees no gradient) and the ranks among 100,
        of which 1 is found. Outcomes have their own columns, see `outcomes`.

        Args:
            requests: by a key, or a tuple of keys.
            names: what the parts of a key are called; a policy "" is written as none.
            policy_known: policies under which `rank_knowing` is looked for too, see `found`.
            draw_known: add `gain_told` of attacks, dB over the guess of somebody who knows label,
                policy and draw and sees no gradient.
            outcomes: add what attacks tell of the photographs: `found`, `bits`, `frame` and
                `gain_told`, see `outcomes`.
            pictures: add `found`, `bits` and `frame` of the photographs whose pictures are kept of
                every attack, the first sixteen, and `gain_told` of all; elsewhere nan.
            blind: False leaves out `gain` and its floors, which take a quarter second a policy.
        """
        known = {
            key: self.found(handle)
            for key, handle in requests.items()
            if isinstance(handle.request, AttackRequest)
            and handle.request.policy
            and handle.request.policy in policy_known
        }
        told = {
            key: self.outcomes(handle)
            for key, handle in requests.items()
            if outcomes and isinstance(handle.request, AttackRequest)
        }
        self.compute([*requests.values(), *known.values(), *told.values()])
        seen = self._picture_rows(requests) if pictures else {}
        parts = []
        for key, handle in requests.items():
            part = self._rows_of(handle.request, blind=blind)
            columns = _columns(names, key)
            part = part.assign(**columns)
            if key in known:
                part["rank_knowing"] = self._artifact(known[key].request)["rank_knowing"].numpy()
            elif policy_known and "rank_original" in part and not handle.request.policy:
                part["rank_knowing"] = part[
                    "rank_original"
                ]  # without a policy there is one form of each image
            if key in seen:
                own = seen[key].set_index("image").reindex(part["image"])
                of_seen = ("found", "bits", "frame")
                part = part.assign(**{name: own[name].to_numpy(float) for name in of_seen})
            if (draw_known or pictures) and isinstance(handle.request, AttackRequest):
                part["gain_told"] = part["psnr"] - guess_of(handle.request).double().numpy()
            if key in told:
                more = self._rows_of(told[key].request).rename(columns={"gain": "gain_told"})
                part = part.assign(**{name: more[name] for name in OUTCOME_COLUMNS})
            parts.append(part)
        return pd.concat(parts, ignore_index=True)

    def _picture_rows(self, requests: Mapping[object, Handle]) -> dict[object, pd.DataFrame]:
        """`picture_rows` of the attacks among these requests, by the request's key."""
        requests = {
            key: handle.request
            for key, handle in requests.items()
            if isinstance(handle.request, AttackRequest)
        }
        kept = (self._artifact(request) for request in requests.values())
        return dict(zip(requests, picture_rows(kept, list(requests.values())), strict=True))

    def _rows_of(self, request: Kept, *, blind: bool = True) -> pd.DataFrame:
        artifact = self._artifact(request)
        if isinstance(request, AttackRequest):
            return image_rows(artifact, request, blind=blind)
        if isinstance(request, OutcomeRequest):
            return outcome_rows(artifact, request.attack)
        check_kind(
            "Study.table takes attacks, outcomes and scores:",
            request,
            ScoreRequest,
            "not networks; see accuracies",
        )
        scores = pd.DataFrame(
            artifact["scores"].double().numpy(), index=list(map(label, request.policies))
        )
        scores = scores.rename_axis("policy").reset_index()
        return scores.melt("policy", var_name="image", value_name="score")

    def accuracies(self, networks: Mapping[object, Handle], names: Sequence[str]) -> pd.DataFrame:
        """One row per trained network: `accuracy` in percent of the test set, and `train`, how many
        it learned from.

        Args:
            networks: by a key, or a tuple of keys.
            names: what the parts of a key are called.
        """
        self.compute(networks)
        rows = []
        for key, handle in networks.items():
            columns = _columns(names, key)
            kept = self._artifact(handle.request)
            learned = (
                {"train": int(kept["images"])} if "images" in kept.tensors else {}
            )  # not known on the way
            rows.append(columns | {"accuracy": float(kept["accuracy"])} | learned)
        return pd.DataFrame(rows)

    def histories(self, networks: Mapping[object, Handle], names: Sequence[str]) -> pd.DataFrame:
        """One row per trained network and epoch: `epoch` from 1, mean training `loss`, `lr`,
        `seconds`, and `accuracy` in percent of the first test images (nan where a network was
        trained before that was kept).

        Args:
            networks: by a key, or a tuple of keys.
            names: what the parts of a key are called.
        """
        self.compute(networks)
        parts = []
        for key, handle in networks.items():
            history = self._artifact(handle.request)["history"].double().numpy()
            measured = ["loss", "lr", "seconds", "accuracy"]
            part = pd.DataFrame(history, columns=measured[: history.shape[1]])
            part = part.reindex(columns=measured)
            part.insert(0, "epoch", range(1, len(part) + 1))
            columns = _columns(names, key)
            parts.append(part.assign(**columns))
        return pd.concat(parts, ignore_index=True)

    # where it was made

    def origin(self, requests: Mapping[object, Handle]) -> dict[str, object]:
        """Where and when these results were made: first and last day, devices, versions."""
        made = [self.store.facts(handle.request) for handle in requests.values()]
        days = sorted(
            datetime.datetime.fromisoformat(each["made"]).date().isoformat() for each in made
        )
        first = made[0]
        return {
            "profile": self.profile,
            "dataset": self.dataset,
            "seed": self.seed,
            "made": days[-1],
            "made_first": days[0],
            "device": ", ".join(sorted({each["device"] for each in made})),
            "torch": first["torch"],
            "python": first["python"],
        }

    def facts(
        self, requests: Mapping[object, Handle], *, split: str = "train", **more: object
    ) -> dict[str, object]:
        """`origin`, what the images are that networks learn from, and what is given.

        Args:
            split: of the data set, from which they are: "train" or "test".
        """
        images = dataset(self.dataset, split)
        return self.origin(requests) | {"train": len(images), "note": images.note} | more

    def cost(self) -> Cost:
        """What all that this study was asked for took where it was made, with the networks that it
        needs.
        """
        facts = [self.store.facts(request) for request in self._needed()]
        seconds = [fact["seconds"] for fact in facts]
        devices = tuple(sorted({fact["device"] for fact in facts}))
        return Cost(
            len(facts), round(sum(seconds), 1), round(max(seconds, default=0.0), 1), devices
        )

    def keys(self) -> list[str]:
        """The keys in the store of all that this study was asked for and of what that needs."""
        return sorted(self.store.path(request.kind, request).stem for request in self._needed())

    # inside

    def _needed(self) -> list[Kept]:
        return list(
            dict.fromkeys(part for request in self.asked for part in (*request.needs, request))
        )

    def _request(self, request: Kept) -> Handle:
        if request.is_kept:
            self.asked[request] = None
        return Handle(request, self)

    def _described(self, handle: object, kind: type, what: str) -> Kept:
        if isinstance(handle, Handle) and isinstance(handle.request, kind):
            return handle.request
        given = type(handle.request).__name__ if isinstance(handle, Handle) else repr(handle)
        raise AtsError(
            f"{what}={given} must be a request that this study made, as study.network(…) and others do"
        )

    def _artifact(self, request: Kept) -> Artifact:
        """The kept result, after `compute`; the last ones that were read are still at hand."""
        if request not in self._at_hand:
            if len(self._at_hand) >= CACHE_SIZE:
                del self._at_hand[next(iter(self._at_hand))]
            self._at_hand[request] = request.make(self.store, self.device)
        return self._at_hand[request]


def _columns(names: Sequence[str], key: object) -> dict[str, object]:
    """The parts of a request's key by what they are called; a policy "" is written as none."""
    columns = dict(zip(names, key if isinstance(key, tuple) else (key,), strict=True))
    if "policy" in columns:
        columns["policy"] = label(str(columns["policy"]))
    return columns


def _rows(images: range | int) -> tuple[int, int]:
    """First and last + 1 of a range of images."""
    if isinstance(images, int) and not isinstance(images, bool):
        images = range(images)
    if not isinstance(images, range) or images.step != 1 or not 0 <= images.start < images.stop:
        raise AtsError(
            f"images={images!r} must be a range such as range(100), or a number of at least 1"
        )
    return images.start, images.stop


def _attack(attack: object, steps: int | None) -> object:
    """The attack that is meant, with so many steps."""
    if isinstance(attack, str):
        choose("attack", attack, ATTACKS)
        attack = ATTACKS[attack]
    if isinstance(attack, type | types.FunctionType):
        attack = WrittenAttack(NotebookFunction(attack))
    elif dataclasses.is_dataclass(attack) and not type(attack).__module__.startswith(OWN_PACKAGES):
        fields = tuple(
            (field.name, getattr(attack, field.name))
            for field in dataclasses.fields(attack)
            if field.init
        )
        for name, value in fields:
            if has_no_text(value) or isinstance(value, Tensor | nn.Module):
                raise AtsError(
                    f"{type(attack).__name__}.{name}={value!r} must be a number, a text or a frozen dataclass"
                )
        attack = WrittenAttack(NotebookFunction(type(attack)), fields)
    if steps is None:
        return attack
    check_whole("steps", steps, 1)
    if not isinstance(attack, GradientMatching):
        raise AtsError(
            f"steps={steps}: {getattr(attack, 'title', type(attack).__name__)} has no steps; leave it out"
        )
    return dataclasses.replace(attack, steps=steps)


# --- a notebook's parameters ------------------------------------------------------------------------------------------


FUNCTIONS = 20_439  # policies of up to three operations that differ, see `enumerate_distinct`
MOST = {
    "sampled": FUNCTIONS,
    "candidates": FUNCTIONS,
    "draws": 1_000,
    "fraction": 1.0,
    "steps": 10_000_000,
    "first_steps": 10_000_000,
    "epochs": 1_000_000,
}  # of parameters that a page does not say


def _test_images(given: Mapping[str, object]) -> int | None:
    """How many test images the data set has that a notebook is given; None where it is not here."""
    profile = given.get("profile") or "smoke"
    choose("profile", profile, PROFILES)
    dataset = given.get("dataset") or PROFILES[profile]["dataset"]
    choose("dataset", dataset, DATASETS)
    return len(load(dataset, "test")) if available(dataset, "test") else None


def annotated(variables: Mapping[str, object]) -> dict[str, type]:
    """What cells have annotated, by name: from Python 3.14 on a namespace holds a function that
    tells it, and before its values.
    """
    if callable(tell := variables.get("__annotate__")):
        return dict(tell(1))  # values, as `annotationlib.Format.VALUE`
    return dict(variables.get("__annotations__", {}))


def check_parameters(variables: Mapping[str, object], **most: int) -> None:
    """Refuse parameters that a notebook does not have, or that are of another type or size.

    The notebook's parameters are those that its first cell annotates, such as `images: int = None`.
    What papermill gives with `-p` comes after them, without an annotation: a misspelt name would
    otherwise pass unseen.

    Args:
        variables: `vars()` of the notebook, right after the cell with the parameters.
        most: how many of something the page has at its profile, by the parameter's name, such as
            the photographs that it judges.
    Raises:
        AtsError: it names the parameter and the valid ones.
    """
    kinds = annotated(variables)
    given = parameters_among(variables, kinds)
    for name, kind in kinds.items():
        value = given.get(name)
        if value is None:
            continue
        fits = isinstance(value, int | float if kind is float else kind) and not isinstance(
            value, bool
        )
        if not fits:
            raise AtsError(f"parameter {name}={value!r} must be of type {kind.__name__}")
        if isinstance(value, int) and name != "seed" and value < 1:
            raise AtsError(f"parameter {name}={value} must be at least 1")
        limit = most.get(name, MOST.get(name))
        if limit is None and name.endswith("images"):
            limit = _test_images(given)
        if limit is not None and value > limit:
            more = ""
            if name in most:
                more = f", which is all that this page has at profile {given.get('profile')}"
            raise AtsError(f"parameter {name}={value} must be at most {limit}{more}")
