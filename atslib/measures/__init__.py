"""How close a reconstruction is to the truth, and how sure one may be of a mean or a difference.

`found` asks whether it is known which photograph it was, in bits too, `guesses` what would be
answered without a gradient, `frame` how well the visible part of the photograph is known,
`perceptual` what a network that knows pictures recognizes. `metrics` compares an image with its
reconstruction, `identification` finds it among others of any class; `batches` pairs the images of a
batch with their reconstructions, and counts its labels; `statistics` makes intervals, comparisons
and correlations of such values. To add a measure: one function in `metrics`.
"""

from atslib.measures.batches import align, found

__all__ = ["align", "found"]
