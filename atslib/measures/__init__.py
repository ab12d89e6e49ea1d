"""How close a reconstruction is to the truth.

`found` asks whether it is known which photograph it was, in bits too, `guesses` what would be
answered without a gradient, `frame` how well the visible part of the photograph is known,
`perceptual` what a network that knows pictures recognizes. `metrics` compares an image with its
reconstruction, `identification` finds it among others of any class; `batches` pairs the images of a
batch with their reconstructions, and counts its labels; `intervals` says how sure one may be of a
share. To add a measure: one function in
`metrics`.
"""

from atslib.measures.batches import align

__all__ = ["align"]
