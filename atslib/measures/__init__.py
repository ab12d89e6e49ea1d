"""How close a reconstruction is to the truth, and how sure one may be of a mean or a difference.

`metrics` compares an image with its reconstruction, `identification` finds it among others, one value per image;
`statistics` makes intervals, comparisons and correlations of such values. To add a measure: one function in `metrics`.
"""

from atslib.measures.identification import identification
from atslib.measures.metrics import feature_mse, lpips, mse, psnr, ssim

__all__ = ["feature_mse", "identification", "lpips", "mse", "psnr", "ssim"]
