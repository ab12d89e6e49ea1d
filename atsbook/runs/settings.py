"""Profiles: what a run is of, and what a notebook's parameters may say."""

import dataclasses
from collections.abc import Collection, Mapping

from atslib.data.load import DATASETS
from atslib.errors import AtsError, choose

# The data set that pages are about unless they say another, the network that they train and its epochs
PROFILES: dict[str, dict] = {
    "smoke": {"dataset": "shapes", "model": "convnet-4", "epochs": 1, "score_points": 4},
    "laptop": {"dataset": "cifar100", "model": "resnet20-1", "epochs": 20},
    "full": {"dataset": "cifar100", "model": "resnet20-4", "epochs": 60},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run of pages is of.

    Attributes:
        profile: smoke, laptop (the size of the stored evidence) or full.
        dataset, model: names for `load` and `build_model`; the network is what clients train.
        seed: of every random stream.
    """

    profile: str
    dataset: str
    model: str
    seed: int = 0


def settings(*, profile: str = "smoke", dataset: str | None = None, seed: int = 0) -> Settings:
    """What a run at a profile is of, its own data set unless another is given.

    Raises:
        AtsError: an unknown profile or data set.
    """
    choose("profile", profile, PROFILES)
    own = PROFILES[profile]
    chosen = own["dataset"] if dataset is None else dataset
    choose("dataset", chosen, DATASETS)
    return Settings(profile=profile, dataset=chosen, model=own["model"], seed=seed)


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
