"""How close a reconstruction is to the truth, and how sure one may be of a mean or a difference.

`metrics` compares images, one value per image; `statistics` makes intervals and correlations of such values. To add
a measure: one function in `metrics`.
"""

from atslib.measures.metrics import feature_mse, lpips, mse, psnr, ssim

__all__ = ["feature_mse", "lpips", "mse", "psnr", "ssim"]
