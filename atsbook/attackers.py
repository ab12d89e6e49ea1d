"""Attackers of the pages who have images of their own: the training images of a data set, by its
name.

The library's attacks of the same names are given the images themselves; here the description says
where they come from, because stored results are keyed by it.
"""

import dataclasses

from atsbook.networks import dataset
from atslib import attacks
from atslib.data.images import Images


class _OfDataset:
    """Has the training images of the data set that is named."""

    images: str

    def own(self) -> Images:
        """The images."""
        return dataset(self.images, "train")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FromMean(_OfDataset, attacks.FromMean):
    """`atslib.attacks.FromMean` with the images of a data set by its name."""

    images: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Undone(_OfDataset, attacks.Undone):
    """`atslib.attacks.Undone` with the images of a data set by its name."""

    images: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learned(_OfDataset, attacks.Learned):
    """`atslib.attacks.Learned` with the images of a data set by its name."""

    images: str
