"""What DP-SGD guarantees: the moments accountant of the subsampled Gaussian mechanism, in closed form."""

import math

import numpy as np
from scipy.special import gammaln, logsumexp

from atslib.errors import AtsError, check_whole

ORDERS = (*range(2, 64), *range(64, 513, 16))  # of the Rényi divergence; whole ones have a closed form


def epsilon(noise: float, *, rate: float, steps: int, delta: float = 1e-5) -> float:
    """The ε of (ε, δ) differential privacy after so many steps of DP-SGD; lower is more private.

    At whole orders α the Rényi divergence of a step is log Σ_k C(α, k) (1 - q)^(α - k) q^k exp(k (k - 1) / 2σ²) over
    α - 1 (Mironov, Talwar, Zhang 2019, arXiv:1908.10530, section 3.3). From there to ε leads the conversion of Balle
    et al. 2020 (arXiv:1905.09982, theorem 21), the one that Opacus uses.

    Args:
        noise: σ, the standard deviation of the noise over the largest norm of one image's gradient.
        rate: q, the chance of each image to be in a step's batch, in (0, 1].
        steps: how many.
        delta: δ, in (0, 1).
    Raises:
        AtsError: a number outside of its range.
    """
    check_whole("steps", steps, 1)
    for name, value, allowed in (("noise", noise, noise > 0), ("rate", rate, 0 < rate <= 1)):
        if not allowed:
            raise AtsError(f"epsilon: {name}={value} must be above 0{'' if name == 'noise' else ' and at most 1'}")
    if not 0 < delta < 1:
        raise AtsError(f"epsilon: delta={delta} must be between 0 and 1")
    found = []
    for order in ORDERS:
        k = np.arange(order + 1)
        choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        stay = (order - k) * math.log1p(-rate) if rate < 1 else np.where(k == order, 0.0, -np.inf)
        divergence = logsumexp(choose + stay + k * math.log(rate) + k * (k - 1) / (2 * noise**2)) / (order - 1)
        spent = math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        found.append(steps * divergence + spent)
    return max(0.0, float(min(found)))
