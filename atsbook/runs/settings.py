"""Profiles: how large an experiment is, and what a notebook's parameters may say."""

import dataclasses
from collections.abc import Collection, Mapping

from atsbook.networks import ModelUnit
from atslib.attacks import ATTACKS
from atslib.clients.training import TrainConfig
from atslib.data.load import DATASETS, is_drawn
from atslib.errors import AtsError, choose


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides an experiment's result, resolved from a profile and a notebook's
    parameters.

    Attributes:
        profile: smoke, laptop (the size of the stored evidence) or full.
        dataset, model: names for `load` and `build_model`; the network is what clients train.
        regime: of the attacked network. "trained": the client's own, at the end of its training.
            "initial": untrained, as at round 0 of any federation, of the kind `attacked` ("" for
            `model`).
        attack: a key of `ATTACKS`, the one that most pages make.
        fraction: share of the training set used, stratified.
        epochs: of each training.
        images: attacked test images, the first of the test set as in both studies.
        steps: of each attack.
        draws: of crop, flip, policy and start, on pages that attack each image more than once.
        control_steps: half the length of the attack that the explorer makes on an untrained
            network.
        semi_fraction, semi_epochs: of the semi-trained network, which privacy scores are computed
            on.
        candidates: policies that the search draws.
        sampled: random policies whose scores are compared with attacks.
        score_images: images behind a score.
        score_points: points of the curve behind a privacy score.
        epsilon: PSNR in dB from which an attack counts as a success (the paper's Definition 1).
        crop_flip: random crop and flip on every attacked image, defended or not; "code" applies
            them to defended images only, as both published codebases do.
        seed: of every random stream.
        device: where it runs; "auto" takes a GPU if there is one.
    """

    profile: str
    dataset: str
    model: str
    fraction: float
    epochs: int
    images: int
    steps: int
    control_steps: int
    semi_fraction: float
    semi_epochs: int
    candidates: int
    sampled: int
    score_images: int
    score_points: int = 21
    regime: str = "trained"
    attacked: str = ""
    attack: str = "adam-cosine"
    draws: int = 1
    epsilon: float = 15.0
    crop_flip: str = "fixed"
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        choose("profile", self.profile, PROFILES)
        choose("dataset", self.dataset, DATASETS)
        choose("regime", self.regime, ("initial", "trained"))
        choose("attack", self.attack, ATTACKS)
        choose("crop_flip", self.crop_flip, ("fixed", "code"))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            kind = field.type
            if kind is float and isinstance(value, int) and not isinstance(value, bool):
                object.__setattr__(self, field.name, float(value))
            elif not isinstance(value, kind) or isinstance(value, bool):
                raise AtsError(f"parameter {field.name}={value!r} must be of type {kind.__name__}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type is int and field.name != "seed" and value < 1:
                raise AtsError(f"parameter {field.name}={value} must be at least 1")
            if field.name.endswith("fraction") and not 0 < value <= 1:
                raise AtsError(f"parameter {field.name}={value} must be in (0, 1]")


PROFILES: dict[str, dict] = {
    "smoke": {
        "dataset": "shapes",
        "model": "convnet-4",
        "fraction": 0.04,
        "epochs": 1,
        "images": 2,
        "steps": 10,
        "control_steps": 20,
        "semi_fraction": 0.04,
        "semi_epochs": 1,
        "candidates": 8,
        "sampled": 6,
        "score_images": 3,
        "score_points": 4,
    },
    "laptop": {
        "dataset": "cifar100",
        "model": "resnet20-1",
        "regime": "initial",
        "attacked": "lenet",
        "attack": "annealed-lenet",
        "fraction": 1.0,
        "epochs": 20,
        "images": 100,
        "draws": 2,
        "steps": 300,
        "control_steps": 300,
        "semi_fraction": 0.1,
        "semi_epochs": 50,
        "candidates": 500,
        "sampled": 100,
        "score_images": 32,
    },
    "full": {
        "dataset": "cifar100",
        "model": "resnet20-4",
        "fraction": 1.0,
        "epochs": 60,
        "images": 100,
        "steps": 4800,
        "control_steps": 2000,
        "semi_fraction": 0.1,
        "semi_epochs": 50,
        "candidates": 1500,
        "sampled": 100,
        "score_images": 100,
    },
}


# The embedded images are ten easy classes: less of everything shows the same page in minutes.
_FEWER = {
    "fraction": 0.1,
    "epochs": 2,
    "images": 4,
    "steps": 40,
    "control_steps": 200,
    "semi_epochs": 1,
    "sampled": 12,
}
_SHAPES = {"laptop": _FEWER}


def parameters_among(variables: Mapping[str, object], known: Collection[str]) -> dict[str, object]:
    """The parameters of a notebook among its variables.

    Right after the cell with the parameters, every plain value is one, and one that is not known is
    refused. If the notebook is run a second time in the same kernel, values of later cells lie
    there too; they are left alone.

    Args:
        variables: `vars()` of the notebook, which is marked as checked.
        known: names of the notebook's parameters.
    Raises:
        AtsError: it names the parameters that are unknown, and the valid ones.
    """
    given = {
        name: value
        for name, value in variables.items()
        if not name.startswith("_")
        and name not in ("In", "Out")
        and (value is None or isinstance(value, bool | int | float | str | list | tuple | dict))
    }
    unknown = sorted(set(given) - set(known))
    if unknown and not variables.get("_checked"):
        raise AtsError(
            f"unknown parameter {', '.join(unknown)}; the parameters are {', '.join(known)}"
        )
    if "__name__" in variables:  # the variables of a notebook, not a plain dict
        variables["_checked"] = True
    return {name: value for name, value in given.items() if name in known}


def settings(parameters: Mapping[str, object] | None = None, /, **more: object) -> Settings:
    """Settings from a notebook's variables, or from keywords; None means the profile's value.

    Args:
        parameters: `vars()` of a notebook: all its plain values, IPython's own left out. A name
            that is no setting is an error, so that a misspelt papermill parameter cannot pass
            unseen.
    Raises:
        AtsError: an unknown name, profile or data set, or a value of the wrong type.
    """
    known = [field.name for field in dataclasses.fields(Settings)]
    given = parameters_among(parameters or {}, known) | parameters_among(more, known)
    profile = "smoke" if given.get("profile") is None else given["profile"]
    choose("profile", profile, PROFILES)
    chosen = {name: value for name, value in given.items() if value is not None}
    defaults = {"profile": profile} | PROFILES[profile]
    if is_drawn(str(chosen.get("dataset", ""))):
        defaults |= _SHAPES.get(profile, {})
    return Settings(**(defaults | chosen))


def model_unit(settings: Settings, policy: str = "", **changes: object) -> ModelUnit:
    """The network of `settings` trained with `policy`."""
    train = TrainConfig(policy=policy, epochs=settings.epochs)
    unit = ModelUnit(
        dataset=settings.dataset,
        model=settings.model,
        fraction=settings.fraction,
        train=train,
        seed=settings.seed,
    )
    return dataclasses.replace(unit, **changes)
