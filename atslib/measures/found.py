"""Is it known which photograph it was? A reconstruction against test images of its own class.

A server that knows the label has candidates of one class only: those of other classes are excluded
by the label, not by the reconstruction. It compares its reconstruction with each candidate
photograph in all forms that the policy can give it, turns the similarities into a guess (a
probability for each candidate), and two things are asked of the guess:

* *found*: is the photograph the first of the guess?

* *bits*: how much less is the server in doubt than before? log2 of the number of candidates minus
  the log loss of the guess in bits. 0: it knows nothing; log2(100) = 6.6: it is certain, and right;
  below 0: it is misled. The mean is a lower bound on what the reconstruction tells of the
  photograph, since the guess is fitted on other images.
"""

import dataclasses
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from atslib.data.copies import copies
from atslib.data.images import to_images
from atslib.errors import AtsError
from atslib.measures.frame import shown
from atslib.measures.identification import SHIFT, TIE
from atslib.measures.metrics import check_images
from atslib.policies.differentiable import Form, forms
from atslib.policies.draws import Draw
from atslib.policies.operations import check_pixels
from atslib.policies.policy import Hybrid, Policy

CANDIDATES = 100  # images of a class among which a photograph is to be found, at most
# Squared error, or share of a variance unexplained, below which a match gets no better: 40 dB
FLOOR = 1e-4
PIXELS = ("overlap", "whole", "frame", "colors")
FILLED = ("whole", "colors")  # what the policy blackens is compared, too, in its place
SCALES = ("plain", "likelihood")
OVER = ("best", "marginal")
# Inverse temperatures, in units of the similarities' standard deviation; 0: the similarities are
# not believed at all.
INVERSE = (0.0, *torch.logspace(-2, 4, 121, dtype=torch.float64).tolist())


@dataclasses.dataclass(frozen=True)
class Matcher:
    """How a server compares a reconstruction with a photograph in a form that the policy can give
    it.

    Attributes:
        pixels: which ones are compared. `overlap`: all in which form and reconstruction overlap
            when one is shifted. `whole`: all, where the content moves with the crop and what the
            policy blackens stays in its place. `frame`: only those that the form keeps in the
            frame. `colors`: as `whole`, and brightness and contrast count.
        scale: `plain`, Pearson's correlation times the share of the image that is compared (of
            `colors`, minus the mean squared error); `likelihood`, the log likelihood per pixel of a
            normal error whose variance is not known.
        over: the forms (and mirror images), of which the `best` counts, or all, as the `marginal`
            likelihood.
    """

    pixels: str = "whole"
    scale: str = "likelihood"
    over: str = "best"

    def __post_init__(self) -> None:
        for field, allowed in (("pixels", PIXELS), ("scale", SCALES), ("over", OVER)):
            if getattr(self, field) not in allowed:
                raise AtsError(
                    f"Matcher.{field}={getattr(self, field)!r} must be one of {', '.join(allowed)}"
                )


# Chosen on 2026-11-26 by the rule in `benchmarks/matchers.py`, on images that no page attacks: of
# sixteen it has the most bits, 3.67 in the mean of fifteen cells (no policy and four, on three
# untrained networks). The similarity of `identification`, over forms of the policy, has 3.27; in
# the frame only 3.34 at best, with absolute colors 3.27. Where there is a policy it has 3.58, and
# 1.66 if it undoes nothing. All are in `results/matchers.csv`.
MATCHER = Matcher()


def own_class(
    labels: Tensor,
    rows: Tensor | Sequence[int],
    *,
    most: int = CANDIDATES,
    photographs: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Candidates for each photograph: the first images of its class, the same for all photographs
    of a class.

    A photograph that comes later in its class takes the place of the last of them.

    Args:
        labels: (N,) classes of all images of the data set's test part.
        rows: (B,) which images the photographs are.
        most: candidates; fewer where the smallest of these classes has fewer.
        photographs: (N, C, H, W) all images, of which those that are one photograph (see
            `atslib.data.copies`) count as one candidate, that of the row asked for. None: all
            are taken to be different; two equal ones are then never found.
    Returns:
        (B, K) rows of candidates, and (B,) which of the K is the photograph.
    Raises:
        AtsError: a row that is not there, or a class of a single image.
    """
    rows = torch.as_tensor(rows, dtype=torch.int64, device=labels.device)
    if rows.ndim != 1 or len(rows) == 0 or rows.min() < 0 or rows.max() >= len(labels):
        raise AtsError(f"own_class: rows {rows.tolist()} must name some of {len(labels)} images")
    if photographs is None:
        first = torch.arange(len(labels), device=labels.device)
    elif len(photographs) == len(labels):
        first = copies(photographs).to(labels.device)
    else:
        raise AtsError(f"own_class: {len(photographs)} photographs for {len(labels)} labels")
    return of_own_class(labels, rows, first, most)


def of_own_class(labels: Tensor, rows: Tensor, first: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """`own_class` where it is known of each image of which one it is a copy, (N,) of `copies`."""
    classes, which = labels[rows].unique(return_inverse=True)
    of_class = [_different((labels == c).nonzero().squeeze(1), first) for c in classes]
    count = min(most, *(len(each) for each in of_class))
    if count < 2:
        raise AtsError(
            f"own_class: with at most {most} candidates a class is left with {count}; two are needed"
        )
    candidates = torch.stack([each[:count] for each in of_class])[which]
    there = first[candidates] == first[rows].unsqueeze(1)
    candidates = torch.where(there, rows.unsqueeze(1), candidates)
    late = ~there.any(1)
    candidates[late, -1] = rows[late]
    truth = torch.where(late, count - 1, there.int().argmax(1))
    return candidates, truth


def _different(rows: Tensor, first: Tensor) -> Tensor:
    """The first row of each photograph."""
    seen: dict[int, int] = {}
    for row, group in zip(rows.tolist(), first[rows].tolist(), strict=True):
        seen.setdefault(group, row)
    return torch.tensor(list(seen.values()), dtype=torch.int64, device=rows.device)


def match(
    reconstructions: Tensor,
    photographs: Tensor,
    candidates: Tensor,
    policy: str | Policy | Hybrid | Draw = "",
    *,
    crop_flip: bool = True,
    matcher: Matcher = MATCHER,
) -> Tensor:
    """How alike each reconstruction is to each of its candidates, for a server that knows the
    policy.

    Args:
        reconstructions: (B, C, H, W) in [0, 1], of what the clients made of their photographs.
        photographs: (N, C, H, W) uint8, as they are before crop, flip and policy.
        candidates: (B, K) rows of photographs, see `own_class`.
        policy: what the server knows: the policy, or in a `Draw` of B images also what was drawn
            for each.
        crop_flip: whether clients crop and flip, so that shifts of up to four pixels and mirror
            images are tried; a `Draw` says so itself.
        matcher: the default is the one chosen by `benchmarks/matchers.py`.
    Returns:
        (B, K, V); higher is more alike. V is 1 for the best form or a known draw, else the number
        of forms and mirror images. All of a row are 0 where the reconstruction is flat or not
        finite.
    Raises:
        AtsError: other shapes or dtypes, or rows that are not there.
    """
    return match_each(
        reconstructions, photographs, candidates, policy, crop_flip=crop_flip, matchers=[matcher]
    )[0]


def match_each(
    reconstructions: Tensor,
    photographs: Tensor,
    candidates: Tensor,
    policy: str | Policy | Hybrid | Draw = "",
    *,
    crop_flip: bool = True,
    matchers: Sequence[Matcher],
) -> list[Tensor]:
    """`match` by several matchers, which share most of the work: one result for each."""
    return match_sets(
        [reconstructions], photographs, candidates, policy, crop_flip=crop_flip, matchers=matchers
    )[0]


@torch.no_grad()
def match_sets(
    sets: Sequence[Tensor],
    photographs: Tensor,
    candidates: Tensor,
    policy: str | Policy | Hybrid | Draw = "",
    *,
    crop_flip: bool = True,
    matchers: Sequence[Matcher] = (MATCHER,),
) -> list[list[Tensor]]:
    """`match_each` of several sets of reconstructions, such as those of several attacks on the same
    photographs.

    What the policy makes of the candidates is made once for all. The results are those of each set
    alone to the last bit, since nothing is added up over several sets.
    """
    check_pixels(photographs)
    for reconstructions in sets:
        _check_match(reconstructions, photographs, candidates)
    usable = []
    seen = []
    for reconstructions in sets:
        finite = reconstructions.isfinite().flatten(1).all(1)
        images = torch.where(finite.view(-1, 1, 1, 1), reconstructions, 0.5)
        usable.append(finite & (images.flatten(1).amax(1) - images.flatten(1).amin(1) > 1e-6))
        standardized = {pixels: _standardized(images) for pixels in PIXELS}
        seen.append(standardized | {"colors": images.clamp(0, 1)})
    if isinstance(policy, Draw):
        scores = [_match_drawn(own, photographs, candidates, policy, matchers) for own in seen]
    else:
        scores = _match_forms(seen, photographs, candidates, policy, crop_flip, matchers)
    return [
        [torch.where(good.view(-1, 1, 1), each, 0.0) for each in own]
        for good, own in zip(usable, scores, strict=True)
    ]


def _check_match(reconstructions: Tensor, photographs: Tensor, candidates: Tensor) -> None:
    check_images("match", reconstructions)
    count = len(reconstructions)
    if reconstructions.shape[1:] != photographs.shape[1:] or min(photographs.shape[2:]) <= SHIFT:
        shapes = f"{tuple(reconstructions.shape)} and photographs {tuple(photographs.shape)}"
        raise AtsError(
            f"match: reconstructions {shapes} must agree in (C, H, W), with sides above {SHIFT}"
        )
    if candidates.ndim != 2 or len(candidates) != count or candidates.is_floating_point():
        raise AtsError(
            f"match: candidates {tuple(candidates.shape)} must be rows, (B, K) with B = {count}"
        )
    if candidates.numel() and not 0 <= candidates.min() <= candidates.max() < len(photographs):
        raise AtsError(f"match: candidates must be rows of {len(photographs)} photographs")


def _standardized(images: Tensor) -> Tensor:
    """Each image at mean 0.5 and deviation 0.25: brightness and contrast have no say, and sums stay
    exact enough.
    """
    rows = images.flatten(1)
    rows = rows - rows.mean(1, keepdim=True)
    rows = rows / rows.std(1, keepdim=True).clamp(min=1e-12)
    return (0.5 + 0.25 * rows).view(images.shape)


def _match_forms(
    seen: Sequence[dict[str, Tensor]],
    photographs: Tensor,
    candidates: Tensor,
    policy: str | Policy | Hybrid,
    crop_flip: bool,
    matchers: Sequence[Matcher],
) -> list[list[Tensor]]:
    """`match_sets` with every form, mirror image and shift: (B, K, V) each.

    `seen` are the images of each set by `Matcher.pixels`.
    """
    possible = forms(policy)
    frames = _frames(possible, photographs)
    shift = SHIFT if crop_flip else 0
    like = seen[0]["colors"]
    count = len(possible) * (2 if crop_flip else 1)
    widths = [count if m.over == "marginal" else 1 for m in matchers]
    scores = [[like.new_zeros(*candidates.shape, width) for width in widths] for _ in seen]
    classes, which = candidates.unique(dim=0, return_inverse=True)
    for number, rows in enumerate(classes):
        own = (which == number).nonzero().squeeze(1)
        known = photographs[rows]
        known = torch.cat([known, known.flip(-1)]) if crop_flip else known
        mine = [
            {pixels: images[own].unsqueeze(0) for pixels, images in each.items()} for each in seen
        ]
        # By set, matcher and form: the candidates, and their mirror images
        found: list[list[dict[int, Sequence[Tensor]]]] = [[{} for _ in matchers] for _ in seen]
        for inside, numbers in frames:
            here = inside.unsqueeze(0)
            sides = [_images_side(each, here, shift, matchers) for each in mine]
            for form in numbers:
                ids, signs = possible[form]
                drawn = torch.tensor(signs, dtype=torch.int64).expand(len(known), len(ids))
                made = to_images(Policy(ids).apply_signs(known, drawn)).to(like)
                theirs = _candidates_side(made.unsqueeze(0), here, shift, matchers)
                for side, by_matcher in zip(sides, found, strict=True):
                    compared = _compare(side, theirs, made[0].numel(), matchers)
                    for by_form, score in zip(by_matcher, compared, strict=True):
                        by_form[form] = score[0].split(len(rows), dim=1)
        for results, by_matcher in zip(scores, found, strict=True):
            for result, by_form, matcher in zip(results, by_matcher, matchers, strict=True):
                every = torch.stack([s for form in sorted(by_form) for s in by_form[form]], -1)
                result[own] = every.amax(-1, keepdim=True) if matcher.over == "best" else every
    return scores


def _match_drawn(
    seen: dict[str, Tensor],
    photographs: Tensor,
    candidates: Tensor,
    draw: Draw,
    matchers: Sequence[Matcher],
) -> list[Tensor]:
    """`match_each` by a server that was told the draws, so what each candidate would be: (B, K, 1)
    each.
    """
    like = seen["colors"]
    if len(draw) != len(like):
        raise AtsError(f"match: {len(draw)} draws for {len(like)} reconstructions")
    count = candidates.shape[1]
    inside = shown(draw, photographs)
    parts: list[list[Tensor]] = [[] for _ in matchers]
    for rows in torch.arange(len(like)).split(
        max(1, 2_000 // count)
    ):  # so many candidates in memory at once
        every = draw[rows.repeat_interleave(count)]
        made = (
            to_images(every.apply(photographs[candidates[rows].flatten()]))
            .to(like)
            .unflatten(0, (-1, count))
        )
        mine = {pixels: images[rows].unsqueeze(1) for pixels, images in seen.items()}
        ours = _images_side(mine, inside[rows], 0, matchers)
        theirs = _candidates_side(made, inside[rows], 0, matchers)
        compared = _compare(ours, theirs, made[0, 0].numel(), matchers)
        for collected, score in zip(parts, compared, strict=True):
            collected.append(score.squeeze(1))
    return [torch.cat(collected).unsqueeze(-1) for collected in parts]


def _frames(possible: Sequence[Form], like: Tensor) -> list[tuple[Tensor, list[int]]]:
    """Which pixels of forms show something of the photograph, (H, W) bool, and the numbers of the
    forms that show these: two contrasts, say, show the same.
    """
    found: dict[bytes, tuple[Tensor, list[int]]] = {}
    for number, form in enumerate(possible):
        inside = _inside(form, like)
        key = inside.cpu().numpy().tobytes()
        found.setdefault(key, (inside, []))[1].append(number)
    return list(found.values())


def _inside(form: Form, like: Tensor) -> Tensor:
    """Which pixels of a form show something of the photograph, (H, W) bool."""
    ids, signs = form
    drawn = Draw(
        Policy(ids),
        None,
        None,
        torch.zeros(1, dtype=torch.int64),
        torch.tensor([signs]).view(1, len(ids)),
    )
    return shown(drawn, like)[0]


# The two sides of the sums over the pixels compared, by `Matcher.pixels` and name
Side = dict[str, dict[str, Tensor]]


def _compare(ours: Side, theirs: Side, size: int, matchers: Sequence[Matcher]) -> list[Tensor]:
    """How alike images are to what candidates would have become, the best over shifts: (G, B, N)
    for each matcher.

    If a photograph is cropped by d before a policy that shows it in the pixels `inside`, then pixel
    y shows what the form of the whole photograph has at y + d, where both are inside. Pixels that
    are not inside have a filling, which stays in its place.

    Args:
        ours, theirs: of `_images_side` and `_candidates_side`.
        size: numbers in an image.
    """
    sums = {pixels: _sums(own, theirs[pixels]) for pixels, own in ours.items()}
    return [_score(sums[matcher.pixels], size, matcher).amax(2) for matcher in matchers]


def _images_side(
    seen: dict[str, Tensor], inside: Tensor, shift: int, matchers: Sequence[Matcher]
) -> Side:
    """Of the sums over the pixels compared those that need no candidate, by `Matcher.pixels`.

    `x` and `xx`, sums of the images and of their squares, broadcast to (G, B, D, N), D being the
    shifts. `moved` are the images at every shift, (G, B, D, C, HW), and `filling` what is outside,
    (G, B, CHW).

    Args:
        seen: (G, B, C, H, W) by `Matcher.pixels`, in G groups.
        inside: (G, H, W) bool.
    """
    sides = {}
    for pixels in {m.pixels for m in matchers}:
        images = seen[pixels]
        mask = _compared(inside, images, pixels)
        images = images - 0.5
        mine = images * mask
        here = mask.flatten(1)  # (G, HW)
        total, square = _over_channels(mine)
        own = {
            "x": _dot(_windows(total, shift).squeeze(3), here),  # (G, B, D, 1)
            "xx": _dot(_windows(square, shift).squeeze(3), here),
            # Pixel y of the image, where y + d is.
            "moved": _windows(mine, shift) * here[:, None, None, None],
        }
        if pixels in FILLED:
            filling = images * (1 - mask)
            total, square = _over_channels(filling)
            own["x"] = own["x"] + total.flatten(2).sum(2)[:, :, None, None]
            own["xx"] = own["xx"] + square.flatten(2).sum(2)[:, :, None, None]
            own["filling"] = filling.flatten(2)
        sides[pixels] = own
    return sides


def _compared(inside: Tensor, like: Tensor, pixels: str) -> Tensor:
    """Which pixels move with the crop, (G, 1, 1, H, W) of 0 and 1."""
    return (torch.ones_like(inside) if pixels == "overlap" else inside).to(like)[:, None, None]


def _candidates_side(made: Tensor, inside: Tensor, shift: int, matchers: Sequence[Matcher]) -> Side:
    """Of the sums over the pixels compared those that need no reconstruction, by `Matcher.pixels`.

    `n`, how many pixels, and `y` and `yy`, sums of the candidates and of their squares, broadcast to
    (G, B, D, N), D being the shifts. `flat` are the candidates, (G, CHW, N).

    Args:
        made: (G, N, C, H, W), without the crop.
        inside: (G, H, W) bool.
    """
    channels = made.shape[2]
    # near 0, so that sums of squares lose little
    made = made - 0.5
    made_total, made_square = (x.squeeze(2).flatten(2) for x in _over_channels(made))  # (G, N, HW)
    sides = {}
    for pixels in {m.pixels for m in matchers}:
        mask = _compared(inside, made, pixels)
        here = mask.flatten(1)  # (G, HW)
        both = _windows(mask, shift)[:, 0, :, 0] * here[:, None]  # (G, D, HW)
        own = {
            "n": channels * both.sum(-1)[:, None, :, None],  # (G, 1, D, 1)
            "y": (both @ made_total.transpose(1, 2)).unsqueeze(1),  # (G, 1, D, N)
            "yy": (both @ made_square.transpose(1, 2)).unsqueeze(1),
        }
        if pixels in FILLED:
            outside = (1 - mask).flatten(1)
            own["n"] = own["n"] + channels * outside.sum(1)[:, None, None, None]
            own["y"] = own["y"] + _dot(made_total, outside).transpose(1, 2).unsqueeze(1)
            own["yy"] = own["yy"] + _dot(made_square, outside).transpose(1, 2).unsqueeze(1)
        sides[pixels] = own | {"flat": made.flatten(2).transpose(1, 2)}
    return sides


def _sums(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Over the pixels compared: how many, sums of both sides, of their squares and of their
    products.

    Each broadcasts to (G, B, D, N), D being the shifts.
    """
    moved = ours["moved"]
    products = moved.flatten(3).flatten(1, 2) @ theirs["flat"]
    products = products.unflatten(1, moved.shape[1:3])  # (G, B, D, N)
    if "filling" in ours:
        products = products + (ours["filling"] @ theirs["flat"]).unsqueeze(2)
    return {
        "xy": products,
        **{name: ours[name] for name in ("x", "xx")},
        **{name: theirs[name] for name in ("n", "y", "yy")},
    }


def _over_channels(images: Tensor) -> tuple[Tensor, Tensor]:
    """Sums and sums of squares over channels, (G, B, 1, H, W) each."""
    return images.sum(2, keepdim=True), images.square().sum(2, keepdim=True)


def _dot(images: Tensor, mask: Tensor) -> Tensor:
    """Sums over pixels, each with its weight: (G, ..., HW), (G, HW) -> (G, ..., 1)."""
    return images @ mask.view(len(mask), *[1] * (images.ndim - 3), -1, 1)


def _windows(images: Tensor, shift: int) -> Tensor:
    """(G, B, C, H, W) -> (G, B, D, C, HW), zero-padded and moved by up to `shift` pixels in each
    direction.
    """
    height, width = images.shape[-2:]
    windows = (
        F.pad(images, (shift,) * 4).unfold(3, height, 1).unfold(4, width, 1)
    )  # (G, B, C, S, S, H, W)
    return windows.permute(0, 1, 3, 4, 2, 5, 6).flatten(5).flatten(2, 3)


def _score(sums: dict[str, Tensor], size: int, matcher: Matcher) -> Tensor:
    """From sums over pixels to a similarity, (G, B, D, N)."""
    n = sums["n"].clamp(min=1)
    if matcher.pixels == "colors":
        error = ((sums["xx"] - 2 * sums["xy"] + sums["yy"]) / n).clamp(min=0)
        return -error if matcher.scale == "plain" else -0.5 * torch.log(error + FLOOR)
    mean_x = sums["x"] / n
    mean_y = sums["y"] / n
    variance_x = sums["xx"] / n - mean_x.square()
    variance_y = sums["yy"] / n - mean_y.square()
    spread = (variance_x.clamp(min=0) * variance_y.clamp(min=0)).sqrt()
    covariance = sums["xy"] / n - mean_x * mean_y
    correlation = torch.where(spread > 1e-6, covariance / spread.clamp(min=1e-6), 0.0).clamp(-1, 1)
    share = sums["n"] / size
    if matcher.scale == "plain":
        return share * correlation
    unexplained = 1 - correlation.clamp(min=0).square()
    return -0.5 * share * torch.log(unexplained + FLOOR)


# --- from similarities to a guess ---------------------------------------------------------------------------


def fit_temperature(similarities: Tensor, truth: Tensor) -> float:
    """The temperature at which the guess made of these similarities has the least log loss.

    One image is added whose photograph is every candidate with equal probability: otherwise a few
    images that are all found would make the server certain.

    Args:
        similarities: (B, K) or (B, K, V), of `match`.
        truth: (B,) which candidate each is of.
    Returns:
        Above 0, in the unit of the similarities; infinite where the best guess ignores them.
    Raises:
        AtsError: other shapes, or no image.
    """
    scores, truth = _checked("fit_temperature", similarities, truth)
    if len(scores) == 0:
        raise AtsError("fit_temperature: there is no image to fit it on")
    unit = float(scores.std()) if scores.numel() > 1 else 0.0
    if not unit > 0:
        return math.inf
    losses = []
    for inverse in INVERSE:
        guess = _guess(scores, unit / inverse if inverse else math.inf)
        own = guess.gather(1, truth.unsqueeze(1)).sum()
        losses.append(float(-own - guess.mean()))
    best = INVERSE[losses.index(min(losses))]
    return unit / best if best else math.inf


def rank(similarities: Tensor, truth: Tensor) -> Tensor:
    """Place of the photograph among the candidates by similarity: 1 (worst for privacy) to K.

    Candidates that are as alike, up to 1e-5, come before it.

    Args:
        similarities: (B, K) or (B, K, 1), of `match` by the best form or of `perceptual.recognize`.
        truth: (B,) which candidate each is of.
    Returns:
        (B,) integers.
    Raises:
        AtsError: other shapes, or several forms.
    """
    scores, truth = _checked("rank", similarities, truth)
    if scores.shape[2] != 1:
        raise AtsError(
            f"rank: {scores.shape[2]} forms have no order without a temperature; take the best form"
        )
    return _ranks(scores.squeeze(2), truth)


def _ranks(scores: Tensor, truth: Tensor) -> Tensor:
    return (scores >= scores.gather(1, truth.unsqueeze(1)) - TIE).sum(1)


def found(similarities: Tensor, truth: Tensor, *, temperature: float | None = None) -> Tensor:
    """Whether the photograph is more alike to its reconstruction than every other candidate is.

    Ties, up to 1e-5, are misses: a flat or diverged reconstruction finds nothing.

    Args:
        similarities: (B, K) or (B, K, V), of `match`.
        truth: (B,) which candidate each is of.
        temperature: of a matcher that weighs several forms; None: fitted as for `bits`. Of one form
            it plays no part.
    Returns:
        (B,) bool; by chance 1 / K are found.
    Raises:
        AtsError: other shapes, a temperature that is not above 0, or several forms and fewer than
            two images.
    """
    scores, truth = _checked("found", similarities, truth)
    if scores.shape[2] == 1:
        pooled = scores.squeeze(2)
    else:
        pooled = torch.empty_like(scores[..., 0])
        for rows, fitted in _fitted("found", scores, truth, temperature):
            pooled[rows] = _pooled(scores[rows], fitted)
    return _ranks(pooled, truth) == 1


def bits(similarities: Tensor, truth: Tensor, *, temperature: float | None = None) -> Tensor:
    """What the reconstruction tells of the photograph: log2 K minus the log loss, base 2, of the
    server's guess.

    The guess is the softmax of similarity / temperature over the K candidates.

    Args:
        similarities: (B, K) or (B, K, V), of `match`; of one network, policy and attack.
        truth: (B,) which candidate each is of.
        temperature: fitted on other images of the same network, policy and attack; None: each half
            of these images (even and odd ones) is guessed at the temperature that suits the other
            half.
    Returns:
        (B,) floats up to log2 K, higher is worse for privacy. 0: nothing; below 0: misled. Their
        mean is a bound from below on the information, in bits.
    Raises:
        AtsError: other shapes, a temperature that is not above 0, or none and fewer than two
            images.
    """
    scores, truth = _checked("bits", similarities, truth)
    loss = torch.empty(len(scores), dtype=torch.float64, device=scores.device)
    for rows, fitted in _fitted("bits", scores, truth, temperature):
        guess = _guess(scores[rows], fitted)
        loss[rows] = -guess.gather(1, truth[rows].unsqueeze(1)).squeeze(1)
    return (math.log2(scores.shape[1]) - loss / math.log(2)).to(similarities.dtype)


def _fitted(
    name: str, scores: Tensor, truth: Tensor, temperature: float | None
) -> list[tuple[Tensor, float]]:
    """Rows, and the temperature at which they are guessed."""
    place = torch.arange(len(scores), device=scores.device)
    if temperature is not None:
        if not temperature > 0:
            raise AtsError(f"{name}: temperature={temperature} must be above 0")
        return [(place, temperature)]
    even = place[::2]
    odd = place[1::2]
    if len(odd) == 0:
        raise AtsError(
            f"{name}: a temperature is fitted on other images; give it, or at least two images"
        )
    return [
        (mine, fit_temperature(scores[other], truth[other]))
        for mine, other in ((even, odd), (odd, even))
    ]


def _pooled(scores: Tensor, temperature: float) -> Tensor:
    """One similarity for all forms, (B, K, V) -> (B, K): log-mean-exp at this temperature; the mean
    at infinity.
    """
    if scores.shape[2] == 1:
        return scores.squeeze(2)
    if math.isinf(temperature):
        return scores.mean(2)
    return temperature * (torch.logsumexp(scores / temperature, 2) - math.log(scores.shape[2]))


def _guess(scores: Tensor, temperature: float) -> Tensor:
    """Log probability of each candidate, (B, K, V) -> (B, K)."""
    return torch.log_softmax(_pooled(scores, temperature) / temperature, 1)


def _checked(name: str, similarities: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Similarities as (B, K, V), in double precision, and the truth on their device: `own_class`
    gives it where the labels are.
    """
    shape = tuple(similarities.shape)
    if len(shape) not in (2, 3) or shape[1] < 2 or not similarities.isfinite().all():
        raise AtsError(
            f"{name}: similarities {shape} must be finite, (B, K) or (B, K, forms), of at least two candidates"
        )
    if truth.shape != shape[:1] or not ((truth >= 0) & (truth < shape[1])).all():
        raise AtsError(
            f"{name}: truth {truth.tolist()} must name one of {shape[1]} candidates per reconstruction"
        )
    scores = similarities if len(shape) == 3 else similarities.unsqueeze(2)
    return scores.double(), truth.to(scores.device)
