"""The 50 image operations of the paper, and policies made of them.

`operations` applies one operation, equal to Pillow bit for bit; `policy` holds `Policy`, `Hybrid`, sampling,
enumeration and files. To add an operation: one entry in `operations.OPS` and, for a new kind, one kernel.
"""

from atslib.policies.operations import OPS, Op, apply, crop_and_flip, magnitude
from atslib.policies.policy import Hybrid, Policy, load_policies, parse_policy, save_policies

__all__ = ["OPS", "Hybrid", "Op", "Policy", "apply", "crop_and_flip", "load_policies", "magnitude"]
__all__ += ["parse_policy", "save_policies"]
