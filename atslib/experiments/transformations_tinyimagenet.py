"""Extension 2: the 50 transformations on Tiny ImageNet (replication, Figure 8c)."""

from atslib.experiments import tinyimagenet, transformations
from atslib.experiments.scoring import ScoreUnit
from atslib.experiments.settings import Settings
from atslib.report import Result
from atslib.store import Store

PAGE = "ext2_transformations_tinyimagenet"
VARIANTS = ("code",)  # what there is to compare with is of this variant


def units(settings: Settings) -> dict[str, ScoreUnit]:
    """The scores of all 50."""
    return transformations.scores(tinyimagenet.own(settings), VARIANTS)


def run(settings: Settings, store: Store) -> Result:
    """Score the 50 transformations. Table `scores`: a row a transformation and image."""
    named = transformations.named_five("replication", "Figure 6c")
    return transformations.measure(tinyimagenet.own(settings), store, PAGE, VARIANTS, named, "replication")
