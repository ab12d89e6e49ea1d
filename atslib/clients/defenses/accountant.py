"""What DP-SGD guarantees, by the accountant of Opacus (extra `dp`)."""

import warnings

from atslib.errors import AtsError, check_whole


def epsilon(noise: float, *, rate: float, steps: int, delta: float = 1e-5) -> float:
    """The ε of (ε, δ) differential privacy after so many steps of DP-SGD; lower is more private.

    By Rényi divergences of the subsampled Gaussian mechanism (Mironov, Talwar, Zhang 2019,
    arXiv:1908.10530) at the orders that Opacus takes; each order gives a bound, and the least of
    them is the result.

    Args:
        noise: σ, the standard deviation of the noise over the largest norm of one image's gradient.
        rate: q, the chance of each image to be in a step's batch, in (0, 1].
        steps: how many.
        delta: δ, in (0, 1).
    Raises:
        AtsError: a number outside of its range, or Opacus is not installed.
    """
    check_whole("steps", steps, 1)
    for name, value, allowed in (("noise", noise, noise > 0), ("rate", rate, 0 < rate <= 1)):
        if not allowed:
            raise AtsError(
                f"epsilon: {name}={value} must be above 0{'' if name == 'noise' else ' and at most 1'}"
            )
    if not 0 < delta < 1:
        raise AtsError(f"epsilon: delta={delta} must be between 0 and 1")
    try:
        from opacus.accountants import RDPAccountant
    except ImportError as error:
        raise AtsError("epsilon needs Opacus: pip install 'atslib[dp]'") from error
    accountant = RDPAccountant()
    accountant.history = [(noise, rate, steps)]
    with (
        warnings.catch_warnings()
    ):  # at little noise the least order is the best; the bound holds, if loosely
        warnings.filterwarnings(
            "ignore", "Optimal order is the (smallest|largest) alpha", UserWarning
        )
        return float(accountant.get_epsilon(delta))
