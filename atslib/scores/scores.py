"""The two numbers of the search: how much a policy hides, and how much accuracy it costs, both
without an attack.

The privacy score follows the gradient from noise to the transformed image; the accuracy score
measures how alike an untrained network's responses to transformed images are. Each has three
variants: "paper" as printed, "code" as the authors' released code computes it, "fixed" as we would.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from atslib.clients.prepare import streams, to_images, transform
from atslib.data.images import describe, is_tensor
from atslib.data.load import Images
from atslib.errors import AtsError, check_kind, check_whole, choose
from atslib.gradients.chunks import in_chunks
from atslib.gradients.cpu import each, pieces
from atslib.gradients.inputs import any_parameter, check_fit, checked
from atslib.gradients.per_example import SameRules
from atslib.gradients.problems import DISTANCES, mixes_nothing, problem_gradients
from atslib.models import class_scores, copied, fast_layout, normalization_layer
from atslib.policies.policy import Hybrid, Policy, parse_policy
from atslib.rng import as_stream
from atslib.rng import rng as stream

MOST = 10_000  # points of a curve, and draws
VARIANTS = ("paper", "code", "fixed")

# Variant → GradSim, as a key of DISTANCES. The authors' code averages the cosines of the parameter
# tensors, so that 16 biases weigh as much as 36,864 weights. Eq. 5, and the attack's cost, take the
# gradient as one vector; so do we.
_DISTANCE = {"paper": "cosine", "code": "cosine-tensors", "fixed": "cosine"}


def area(curve: Tensor, variant: str = "fixed") -> Tensor:
    """The area under (B, points) curves as that variant takes it, (B,): the privacy score of each.

    Eq. 7 is a left Riemann sum: the curve ends at 1, so it falls short by about half an interval
    and moves with the number of points. The trapezoids of the code do not; "fixed" keeps them.
    """
    choose("variant", variant, VARIANTS)
    return (
        curve[:, :-1].mean(1)
        if variant == "paper"
        else torch.trapezoid(curve, dx=1 / (curve.shape[1] - 1))
    )


def gradsim_curve(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    points: int = 21,
    start: Tensor | None = None,
    variant: str = "fixed",
    rng: torch.Generator | int | None = None,
) -> Tensor:
    """Similarity of the gradients of an image and of its mixtures with noise (paper Eq. 5 and Fig.
    1).

    Point j of K + 1 is at j/K · image + (1 - j/K) · noise. (Mixing before or after normalization is
    the same, since that is affine.)

    Args:
        model: in eval mode (the paper: semi-trained).
        images: (B, C, H, W) floats in [0, 1], already transformed.
        labels: (B,) int64.
        points: K + 1, at least 2.
        start: the noise, (B, C, H, W) in [0, 1]; None draws it uniformly from `rng`.
        variant: "paper" and "fixed": one cosine over the whole gradient; "code": the mean over
            those of the tensors.
    Returns:
        (B, points) in [-1, 1], from the noise to the image; the last is 1 by construction. Lower is
        more private: the gradient resembles that of the image only near its end.
    Raises:
        AtsError: a wrong shape, an unknown variant, fewer than 2 points, neither `start` nor `rng`.
    """
    return gradsim_curves(model, images, labels, (variant,), points=points, start=start, rng=rng)[0]


def gradsim_curves(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    variants: Sequence[str],
    *,
    points: int = 21,
    start: Tensor | None = None,
    rng: torch.Generator | int | None = None,
) -> Tensor:
    """`gradsim_curve` of several variants from the same gradients, (variants, B, points)."""
    for variant in variants:
        _check(model, variant, points)
    rng = as_stream(rng, optional=True)
    images, labels = checked(model, images, labels)
    if start is None:
        if rng is None:
            raise AtsError(
                "gradsim_curve: give `start`, the noise that the curve begins at, or `rng` to draw it"
            )
        start = torch.rand(images.shape, generator=rng, device=rng.device).to(images)
    return _curves(model, images, labels, _start(start, images), points=points, variants=variants)


def privacy_score(
    model: nn.Module, images: Images, policy: Policy | Hybrid, **options: object
) -> Tensor:
    """`privacy_scores` of one policy: one score per image, (B,); lower is more private.

    Their mean is the policy's score. `options` are those of `privacy_scores`, of which `rng` must
    be given.
    """
    return privacy_scores(model, images, [policy], **options)[0]


def privacy_scores(
    model: nn.Module,
    images: Images,
    policies: Sequence[Policy | Hybrid],
    *,
    points: int = 21,
    draws: int = 1,
    starts: Tensor | None = None,
    variant: str = "fixed",
    first: int = 0,
    rng: torch.Generator | int,
) -> Tensor:
    """Area under each image's `gradsim_curve` after crop, flip and policy (paper Eq. 6 and 7);
    lower is more private.

    All policies see the same crops, flips and noise, which derive from one integer of `rng`:
    differences are paired, calls with equal `rng` agree, and an image's score depends on no other
    image or policy.

    Args:
        model: in eval mode (the paper: trained on 10 % of the data); the scores are computed on its
            device.
        images: B of them, uint8.
        policies: P of them.
        points: of the curve; the authors' code has 21.
        draws: of crop, flip, policy and noise, averaged.
        starts: (B, C, H, W) noise in [0, 1] for every draw; None draws it uniformly.
        variant: "paper": whole gradient, left Riemann sum; "code": mean over tensors, trapezoids;
            "fixed": whole gradient, trapezoids.
        first: number of the first image to score; those before it only take their draws, so that
            scores can be computed in parts.
        rng: a stream, or a seed for one; one integer is drawn from it.
    Returns:
        (P, B - first), in [-1, 1], in practice about 0 to 1.
    Raises:
        AtsError: a network in training mode, images that it does not take, no policy, a number out
            of range, or gradients that are not finite.
    """
    _check(model, variant, points)
    _check_counts(model, images, policies, starts, draws, first)
    seed = _seed(rng)
    like = next(model.parameters())
    images = images.to(like.device)
    total = 0
    for draw in range(draws):
        prepared = torch.cat(
            [transformed(images, policy, seed=seed, draw=draw)[first:] for policy in policies]
        )
        noise = (
            torch.rand(images.pixels.shape, generator=stream(seed, "start", draw))
            if starts is None
            else starts
        )
        mixed = prepared, images.labels[first:], noise[first:].to(like)
        total = total + area(_curves(model, *mixed, points=points, variants=(variant,))[0], variant)
    if not total.isfinite().all():
        raise AtsError(
            f"privacy_scores: {type(model).__name__} gives gradients that are nan or infinite"
        )
    return (total / draws).view(len(policies), -1)


def _check_counts(
    model: nn.Module,
    images: Images,
    policies: Sequence[Policy | Hybrid],
    starts: Tensor | None,
    draws: int,
    first: int,
) -> None:
    check_whole("draws", draws, 1, MOST)
    check_whole("first", first, 0)
    check_fit(model, images)
    check_kind("policies", policies, list | tuple, "a list of policies")
    for policy in policies:
        parse_policy(policy)
    if starts is not None:
        _start(starts, images.pixels)
    if draws < 1 or not 0 <= first < len(images) or not policies:
        shown = f"{draws} draws, {len(policies)} policies, images {first} to {len(images)}"
        raise AtsError(f"privacy_scores: {shown}; there must be at least one of each")


def accuracy_score(
    model: nn.Module,
    images: Images,
    policy: Policy | Hybrid,
    *,
    variant: str = "fixed",
    one_per_class: bool | None = None,
    batch: int = 100,
    rng: torch.Generator | int,
) -> float:
    """How differently an untrained network responds to the transformed images (paper Eq. 8 to 10);
    higher is better.

    The mean of `jacobian_score` over whole batches (the paper: 10 rounds of 100 images). A
    Jacobian's row is the gradient of the sum of logits with respect to the normalized image, as in
    the authors' code.

    Args:
        model: in eval mode, not trained.
        images: uint8; the last, incomplete batch is left out unless it is the only one.
        variant: see `jacobian_score`; with "paper" lower is better, although the paper's text says
            higher.
        one_per_class: keep only a batch's first image of each label; None: in variant "code", whose
            filter does that unannounced (about 63 of 100 CIFAR-100 images stay, at most 10 of
            Fashion-MNIST).
        rng: as in `privacy_scores`: equal `rng`, equal crops and flips for every policy.
    Returns:
        The score; of variant "fixed" at most -1, for images whose responses are uncorrelated.
    Raises:
        AtsError: fewer than two images in a batch, or a Jacobian that is constant.
    """
    _check(model, variant)
    check_whole("batch", batch, 2)
    check_fit(model, images)
    policy = parse_policy(policy)
    seed = _seed(rng)
    device = next(model.parameters()).device
    dtype = next(model.parameters()).dtype
    one_per_class = variant == "code" if one_per_class is None else one_per_class
    prepared = transformed(images.to(device), policy, seed=seed)
    scores = []
    for rows in torch.arange(len(images)).split(batch):
        if len(rows) < batch and scores:
            break
        if one_per_class:
            labels = images.labels[rows].tolist()
            rows = rows[
                sorted({label: i for i, label in reversed(list(enumerate(labels)))}.values())
            ]
        scores.append(
            jacobian_score(
                jacobian(model, to_images(prepared[rows.to(device)], dtype)), variant=variant
            )
        )
    return sum(scores) / len(scores)


def jacobian_score(jacobian: Tensor, *, variant: str = "fixed") -> float:
    """Score of the correlations between the rows of a Jacobian (N, D), N at least 2.

    With the eigenvalues v of the rows' correlation matrix and e = 1e-5, Eq. 10 prints the mean of
    log(v + e) + 1 / (v + e), which grows as rows become alike: "paper", lower is better. "code" is
    minus the sum, as in Mellor et al. 2020 (arXiv:2006.04647); it grows with N. "fixed" is minus
    the mean: higher is better, at most -1 (uncorrelated rows), comparable between batches of
    different size.

    Raises:
        AtsError: N is below 2, or a row is constant or not finite, so that it has no correlation.
    """
    choose("variant", variant, VARIANTS)
    if jacobian.ndim != 2 or min(jacobian.shape) < 2:
        shape = tuple(jacobian.shape)
        raise AtsError(
            f"jacobian_score: a Jacobian of shape {shape}; expected (N, D), both above 1"
        )
    correlation = torch.corrcoef(jacobian.double())
    if not correlation.isfinite().all():
        raise AtsError(
            "jacobian_score: a row is constant or not finite and correlates with nothing; check the model"
        )
    shifted = torch.linalg.eigvalsh(correlation) + 1e-5
    terms = shifted.log() + 1 / shifted
    return float({"paper": terms.mean(), "code": -terms.sum(), "fixed": -terms.mean()}[variant])


def jacobian(model: nn.Module, images: Tensor) -> Tensor:
    """Gradient of each image's sum of logits with respect to the normalized image, (N, C·H·W).

    Args:
        images: (N, C, H, W) floats in [0, 1].
    """
    x = fast_layout(images.detach()).requires_grad_()
    together = mixes_nothing(model, tuple(images.shape[1:]))
    with torch.enable_grad(), SameRules():
        parts = [x] if together else x.split(1)
        scores = torch.cat([class_scores(model, part) for part in parts])
        (by_pixel,) = torch.autograd.grad(scores.sum(), x)
    return (by_pixel * normalization_layer(model).std).flatten(
        1
    )  # the chain rule, back from pixels


def transformed(images: Images, policy: Policy | Hybrid, *, seed: int, draw: int = 0) -> Tensor:
    """What the client trains on, uint8: crop and flip, the same for every policy, then the policy."""
    return transform(images.pixels, policy, rng=streams(seed, policy, draw))


def _seed(rng: torch.Generator | int) -> int:
    rng = as_stream(rng)
    return int(torch.randint(1 << 62, (1,), generator=rng, device=rng.device))


def _check(model: nn.Module, variant: str, points: int = 2) -> None:
    choose("variant", variant, VARIANTS)
    any_parameter(model)
    check_whole("points", points, 2, MOST)  # a curve's two ends
    if model.training:
        raise AtsError(
            f"{type(model).__name__} is in training mode, where images affect each other; call eval()"
        )


def _start(start: Tensor, pixels: Tensor) -> Tensor:
    if not is_tensor(start) or start.shape != pixels.shape or not start.is_floating_point():
        raise AtsError(
            f"start is {describe(start)}; it must be floats in [0, 1] of the images' shape, {tuple(pixels.shape)}"
        )
    return start.to(pixels) if pixels.is_floating_point() else start


@torch.no_grad()
def _curves(
    model: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    start: Tensor,
    *,
    points: int,
    variants: Sequence[str],
) -> Tensor:
    """Curves of N images, uint8 or floats in [0, 1]; labels and starts, B of them, repeat.
    (variants, N, points)
    """
    rows = _rows_at_once(model)
    threads = pieces(len(pixels), pixels.device)
    models = (
        [model] if len(threads) == 1 else [copied(model) for _ in threads]
    )  # hooks are not thread-safe

    def one_piece(model: nn.Module, chosen: Tensor) -> Tensor:
        images = (
            pixels[chosen] if pixels.is_floating_point() else to_images(pixels[chosen], start.dtype)
        )
        again = chosen % len(start)
        return _similarities(
            model, (images.to(start), start[again], labels[again]), points, rows, variants
        )

    def curves(part: slice) -> Tensor:
        parts = torch.arange(part.start, part.stop, device=pixels.device).chunk(len(models))
        return torch.cat(each(one_piece, models[: len(parts)], parts), 1)

    return torch.cat(in_chunks(curves, len(pixels), max(1, rows // points) * len(models)), 1)


def _similarities(
    model: nn.Module,
    mixed: tuple[Tensor, Tensor, Tensor],
    points: int,
    rows: int,
    variants: Sequence[str],
) -> Tensor:
    """(variants, m, points) for m images, starts and labels, at most about `rows` gradients in
    memory.
    """
    images, start, labels = mixed
    reference = []
    # From the image back to the noise: the gradient of the image itself comes first and is computed
    # once.
    shares = torch.arange(points - 1, -1, -1, device=images.device).to(images.dtype) / (points - 1)

    def similarities(part: slice) -> Tensor:
        share = shares[part].view(-1, 1, 1, 1)
        shape = (len(images), len(share))
        x = fast_layout((share * images[:, None] + (1 - share) * start[:, None]).flatten(0, 1))
        gradients = problem_gradients(
            model, x[:, None], labels.repeat_interleave(shape[1])[:, None]
        )
        if not reference:
            reference.extend(g.unflatten(0, shape)[:, :1].clone() for g in gradients)
        repeated = tuple(r.expand(*shape, *r.shape[2:]).flatten(0, 1) for r in reference)
        return torch.stack(
            [1 - DISTANCES[_DISTANCE[name]](gradients, repeated).view(shape) for name in variants]
        )

    size = math.ceil(points / math.ceil(len(images) * points / rows))
    curve = torch.cat(in_chunks(similarities, points, size), 2).flip(2)
    curve[..., -1] = 1  # it is 1 up to rounding
    return curve


def _rows_at_once(model: nn.Module) -> int:
    """Gradients in one batch: enough to keep a GPU busy, 8 GB at most; few on a CPU, for its cache,
    1/4 GB at most.
    """
    size = sum(p.numel() for p in model.parameters())
    on_gpu = next(model.parameters()).is_cuda
    return max(1, min(1024 if on_gpu else 32, (1 << 31 if on_gpu else 1 << 26) // size))
