"""Extension 2: the 50 transformations on Tiny ImageNet (replication, Figure 8c)."""

from atsbook.findings.result import Result
from atsbook.pages import claim6_transformations, ext1_tinyimagenet
from atsbook.runs.scoring import ScoreUnit
from atsbook.runs.settings import Settings
from atsbook.runs.store import Store

PAGE = "ext2_transformations_tinyimagenet"
VARIANTS = (
    "code",
    "fixed",
)  # of the score; judged is the first, of which is what there is to compare with


def own(settings: Settings) -> Settings:
    """The settings of Tiny ImageNet with claim 6's number of scored images."""
    return claim6_transformations.own(ext1_tinyimagenet.own(settings))


def units(settings: Settings) -> dict[str, ScoreUnit]:
    """The scores of every function."""
    return claim6_transformations.scores(own(settings), VARIANTS)


def run(settings: Settings, store: Store) -> Result:
    """Score every function. Table `scores`: one row per function (`op`, its first id) and image."""
    named = claim6_transformations.named_five("replication", "Figure 6c")
    return claim6_transformations.measure(
        own(settings), store, PAGE, VARIANTS, named, "replication"
    )
