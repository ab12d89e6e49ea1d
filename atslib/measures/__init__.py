"""How close a reconstruction is to the truth, and how sure one may be of a mean or a difference.

`metrics` compares an image with its reconstruction, `identification` finds it among others, one
value per image; `batches` pairs the images of a batch with their reconstructions, and counts its
labels; `statistics` makes intervals, comparisons and correlations of such values. To add a measure:
one function in `metrics`.
"""

from atslib.measures.batches import align

__all__ = ["align"]
