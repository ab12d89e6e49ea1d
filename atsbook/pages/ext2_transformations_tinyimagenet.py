"""Extension 2: the 50 transformations on Tiny ImageNet (replication, Figure 8c)."""

from atsbook.findings.result import Result
from atsbook.pages import claim6_transformations
from atsbook.runs.networks import dataset
from atsbook.runs.scoring import ScoreUnit
from atsbook.runs.settings import Settings
from atsbook.runs.store import Store
from atsbook.runs.table1 import relocated

PAGE = "ext2_transformations_tinyimagenet"
VARIANTS = (
    "code",
    "fixed",
)  # of the score; judged is the first, of which is what there is to compare with


NAME = "tinyimagenet"
LAPTOP = {
    "epochs": 3,
    "semi_epochs": 3,
    "images": 64,
    "steps": 600,
}  # an image costs four of CIFAR-100
TENTH = 10_000  # images


def _place(settings: Settings) -> Settings:
    """The settings on Tiny ImageNet; at laptop one short training on a tenth of it serves attacks
    and scores alike.
    """
    if settings.profile != "laptop":
        return relocated(settings, NAME, "shapes")
    place = relocated(settings, NAME, "shapes", **LAPTOP)
    if place.dataset != NAME:
        return place
    share = min(1.0, TENTH / len(dataset(NAME, "train")))
    return relocated(place, NAME, "shapes", fraction=share, semi_fraction=share)


def own(settings: Settings) -> Settings:
    """The settings of Tiny ImageNet with claim 6's number of scored images."""
    return claim6_transformations.own(_place(settings))


def units(settings: Settings) -> dict[str, ScoreUnit]:
    """The scores of every function."""
    return claim6_transformations.scores(own(settings), VARIANTS)


def run(settings: Settings, store: Store) -> Result:
    """Score every function. Table `scores`: one row per function (`op`, its first id) and image."""
    named = claim6_transformations.named_five("replication", "Figure 6c")
    return claim6_transformations.measure(
        own(settings), store, PAGE, VARIANTS, named, "replication"
    )
