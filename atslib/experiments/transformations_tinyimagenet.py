"""Extension 2: the 50 transformations on Tiny ImageNet (replication, Figure 8c)."""

from atslib.experiments import tinyimagenet, transformations
from atslib.experiments.scoring import ScoreUnit
from atslib.experiments.settings import Settings
from atslib.report import Result
from atslib.store import Store

PAGE = "ext2_transformations_tinyimagenet"
VARIANTS = ("code",)  # what there is to compare with is of this variant


def own(settings: Settings) -> Settings:
    """The settings on Tiny ImageNet; at quick with a third of the images, each of which costs four."""
    less = {"score_images": 6} if settings.profile == "quick" else {}
    return tinyimagenet.own(settings, **less)


def units(settings: Settings) -> dict[str, ScoreUnit]:
    """The scores of all 50."""
    return transformations.units(own(settings), VARIANTS)


def run(settings: Settings, store: Store) -> Result:
    """Score the 50 transformations. Table `scores`: a row a transformation and image."""
    named = transformations.named_five("replication", "Figure 6c")
    return transformations.measure(own(settings), store, PAGE, VARIANTS, named, "replication")
