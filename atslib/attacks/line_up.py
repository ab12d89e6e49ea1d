"""The line-up: a server that compares gradients and rebuilds no picture.

The server holds candidate photographs of the client's class, and knows network, label and policy.
For each candidate and each draw of crop, mirror image and form of the policy it computes what the
client would have sent, and takes the candidate that comes nearest.

For one image behind an exact gradient this cannot be wrong: a policy with finitely many draws makes
finitely many images of each candidate, one of which is the image that was used; its gradient is the
observed one, at distance 0. Another candidate can be taken for it only if one of *its* images has
the same gradient.

With one image behind a gradient the input of the last linear layer can be read off it exactly
(weight gradient over bias gradient, see `analytic.invert_linear`), and candidates are compared by
this feature vector: a forward pass each. In a batch each label that occurs once has a row of the
last layer of its own, which is nearly that of its image. Otherwise whole gradients are compared.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atslib.attacks.analytic import invert_linear, of_last_layer
from atslib.clients.view import Observed, Update
from atslib.data.images import to_images
from atslib.errors import AtsError, check_kind, choose
from atslib.gradients.inputs import first_parameter
from atslib.gradients.problems import example_gradients, unflatten
from atslib.models import before_last, fast_layout, last_linear
from atslib.policies.differentiable import Form, forms
from atslib.policies.operations import check_pixels
from atslib.policies.operations import crop_flip as crop_and_mirror
from atslib.policies.policy import Hybrid, Policy, parse_policy

PADDING = 4  # pixels by which clients pad before they crop
# Relative distance below which a candidate's image counts as the one that was used, and a search
# stops. Rounding leaves 1e-7 to 1e-5 of it: a wrong stop would be a wrong answer, one too few only
# costs time.
SAME = 1e-3
FIRST = 8  # draws whose neighbours are looked at, for each photograph, in the search's first round
# A round that leads nowhere is followed by a wider one: where the nearest images mislead, few wide
# rounds cost less than many narrow ones.
GROWTH = 1.3
CHUNK = 256  # images run at once
BY = ("features", "gradients")
EXACT = "donot_use_mm_for_euclid_dist"  # of `torch.cdist`: products would leave 1e-3 of equal rows


@dataclasses.dataclass(frozen=True)
class LineUp:
    """What a line-up says of B photographs among K candidates each.

    Attributes:
        guess: (B,) which candidate comes nearest, 0 … K - 1; -1 where the gradient tells nothing.
        distances: (B, K) relative distance of each candidate's nearest image that was tried, ≥ 0;
            0: the same. Of a search that stopped early (`complete=False`) those of the other
            candidates are upper bounds. Infinite where the gradient tells nothing.
        draws: (B, 4) of each guess what was drawn: row and column of the crop, mirrored or not (1
            or 0), and the number of the form in `policies.differentiable.forms`. Of several rounds
            that of the first; -1 where that round alone points to another candidate, or to none.
        tried: (B,) images that were compared with each photograph's gradient.
    """

    guess: Tensor
    distances: Tensor
    draws: Tensor
    tried: Tensor

    @property
    def margin(self) -> Tensor:
        """(B,) by how much the second candidate is further away than the first."""
        two = self.distances.topk(2, largest=False).values
        return torch.where(two[:, 0].isfinite(), two[:, 1] - two[:, 0], 0.0)


@torch.no_grad()
def line_up(
    seen: Observed,
    photographs: Tensor,
    candidates: Tensor,
    policy: str | Policy | Hybrid = "",
    *,
    crop_flip: bool = True,
    by: str | None = None,
    same: float = SAME,
    complete: bool = False,
    most: int | None = None,
) -> LineUp:
    """Which candidate each gradient is of, by comparing gradients of candidates.

    Candidates' images are tried best first: all forms and mirror images at the middle crop, four
    more crops of the nearest quarter of them, then the neighbours of those that come nearest.
    The search for a photograph ends at an image whose distance is below `same`, or when all were
    tried.

    Args:
        seen: what the server sees, with known labels; of several rounds the distances are added.
        photographs: (N, C, H, W) uint8, as they are before crop, flip and policy.
        candidates: (B, K) rows of photographs for each image behind `seen`, in its order; see
            `own_class`.
        policy: what the server knows of the client's policy; "" for none.
        crop_flip: whether clients crop (4 pixels of padding) and flip.
        by: "features" (what the last layer got) or "gradients" (whole ones); None takes features
            where the network is in eval mode and ends in a linear layer with a bias, and of a batch
            for the images whose label occurs once in it.
        same: relative distance at which a search stops.
        complete: try every image; then all `distances` are exact.
        most: images tried for a photograph at most; None for all.
    Returns:
        One row for each image behind `seen`, on the CPU, wherever network and images are.
    Raises:
        AtsError: labels that are not known; by features, a network without such a layer, or a
            label that occurs twice in a batch; other shapes or rows that are not there.
    """
    labels = _checked(seen, photographs, candidates)
    photographs, candidates = photographs.cpu(), candidates.cpu()
    if most is not None and most < 1:
        raise AtsError(f"line_up: most={most} must be at least 1, or None for all")
    if by is not None:
        choose("line_up: by", by, BY)
    tries = _Tries(photographs, forms(parse_policy(policy)), crop_flip)
    rounds = []
    for update in seen.updates:
        rounds.append(
            _searched(
                _comparisons(update, seen, by), labels, candidates, tries,
                same=same, complete=complete, most=most,
            )
        )  # fmt: skip
    distances = torch.stack([found.distances for found in rounds]).sum(0)
    told = distances.isfinite().any(1)
    guess = torch.where(told, distances.argmin(1), -1)
    same_guess = (rounds[0].guess == guess) & told
    return LineUp(
        guess,
        distances,
        torch.where(same_guess[:, None], rounds[0].draws, -1),
        torch.stack([found.tried for found in rounds]).sum(0),
    )


def _checked(seen: Observed, photographs: Tensor, candidates: Tensor) -> Tensor:
    """Labels (B,) of the images behind `seen`."""
    check_kind("line_up: seen", seen, Observed, "what `observe` returns")
    check_pixels(photographs)
    if seen.labels is None or seen.labels.is_floating_point():
        raise AtsError(
            "line_up needs one known label for each image: ThreatModel(labels='known'), and no defense that mixes them"
        )
    labels = seen.labels.flatten().cpu()
    if candidates.ndim != 2 or len(candidates) != len(labels) or candidates.is_floating_point():
        raise AtsError(
            f"line_up: candidates {tuple(candidates.shape)} must be rows, (B, K) with B = {len(labels)}"
        )
    if candidates.shape[1] < 2 or not 0 <= candidates.min() <= candidates.max() < len(photographs):
        raise AtsError(
            f"line_up: candidates must be at least two rows of {len(photographs)} photographs for each image"
        )
    if tuple(photographs.shape[1:]) != tuple(seen.shape):
        raise AtsError(
            f"line_up: photographs are {tuple(photographs.shape[1:])}, "
            f"and the images behind the gradients {tuple(seen.shape)}"
        )
    return labels


@torch.no_grad()
def line_up_each(
    seen: Sequence[Observed],
    photographs: Tensor,
    candidates: Tensor,
    policy: str | Policy | Hybrid = "",
    *,
    crop_flip: bool = True,
) -> list[LineUp]:
    """`line_up` by features with every image tried, for several gradients of the same photographs.

    An image is computed once for all gradients, and for all photographs that have the same
    candidates.

    Args:
        seen: each of one round, all on the same weights.
        photographs, candidates, policy, crop_flip: as for `line_up`.
    Returns:
        One `LineUp` for each of `seen`.
    Raises:
        AtsError: as `line_up`; no gradient, several rounds, or weights that differ.
    """
    targets = []
    for each in seen:
        _checked(each, photographs, candidates)
        if len(each.updates) != 1:
            raise AtsError(
                f"line_up_each: {len(each.updates)} rounds; it takes one, `line_up` several"
            )
        _check_once(each, torch.arange(each.labels.numel()))
        targets.append(_observed_features(each.updates[0], each))
    if not seen:
        raise AtsError("line_up_each: seen is empty; give at least one gradient")
    photographs, candidates = photographs.cpu(), candidates.cpu()
    model = seen[0].updates[0].model
    state = model.state_dict()
    for each in seen[1:]:
        other = each.updates[0].model.state_dict()
        if other.keys() != state.keys() or any(
            not torch.equal(other[name], value) for name, value in state.items()
        ):
            raise AtsError("line_up_each: the gradients are of different weights; use `line_up`")
    tries = _Tries(photographs, forms(parse_policy(policy)), crop_flip)
    size = torch.Size(tries.shape(candidates.shape[1])).numel()
    results = [_nothing_tried(*candidates.shape) for _ in seen]
    sets, group = candidates.unique(dim=0, return_inverse=True)
    for number, rows in enumerate(sets):
        which = (group == number).nonzero().squeeze(1)
        away = [torch.full((len(which), size), torch.inf) for _ in seen]
        for part in torch.arange(size).split(4 * CHUNK):
            features = _features(model, tries.images(rows, part))
            for target, distances in zip(targets, away, strict=True):
                distances[:, part] = target.distances(features, which).to(distances)
        for result, distances in zip(results, away, strict=True):
            _enter(result, which, distances, tries)
            result.tried[which] = size
    return results


# Of images (n, C, H, W) in [0, 1] with the label of some of the photographs behind `seen`: their
# distances to each of these photographs' gradients, (T, n).
Compare = Callable[[Tensor, Tensor], Tensor]


def _comparisons(update: Update, seen: Observed, by: str | None) -> list[tuple[Tensor, Compare]]:
    """How candidates' images are compared with an update, and for which photographs, by number."""
    rows = torch.arange(seen.labels.numel())
    if by == "gradients" or (by is None and not has_features(update, seen)):
        return [(rows, _by_gradients(update, seen))]
    once = _once(seen).flatten() if by is None else torch.ones(len(rows), dtype=torch.bool)
    ways = ((rows[once], _by_features), (rows[~once], _by_gradients))
    return [(own, how(update, seen)) for own, how in ways if len(own)]


def _once(seen: Observed) -> Tensor:
    """(N, batch) of which images the label occurs once in its batch."""
    labels = seen.labels.cpu()
    return (labels[:, :, None] == labels[:, None]).sum(2) == 1


@torch.no_grad()
def has_features(update: Update, seen: Observed) -> bool:
    """Whether the network's last layer says what it got, and images can be run side by side."""
    try:
        layer = last_linear(update.model)
    except AtsError:
        return False
    if _mixes(update) or sum(of_last_layer(update.model)) != 2:
        return False
    widths: list[tuple[int, ...]] = []
    with before_last(update.model, lambda features: widths.append(tuple(features.shape))):
        scores = update.model(_as_the_model(torch.zeros(1, *seen.shape), update.model))
    if widths != [(1, layer.in_features)]:  # it runs on each token, say, or several times
        return False
    # In a batch each label has a row of its own only where the layer's outputs are the scores.
    return seen.threat.batch == 1 or layer.out_features == scores.shape[1]


def _as_the_model(images: Tensor, model: nn.Module) -> Tensor:
    """Images where the network is and in its precision, as it runs fastest."""
    return fast_layout(images.to(first_parameter(model)))


def _mixes(update: Update) -> bool:
    """Whether an image's features depend on what runs beside it: some layer uses batch statistics."""
    return any(layer.training for layer in update.model.modules())


def _by_features(update: Update, seen: Observed) -> Compare:
    """By what the last layer gets, relative to the length of what it got."""
    target = _observed_features(update, seen)

    def compare(images: Tensor, which: Tensor) -> Tensor:
        _check_once(seen, which)
        return target.distances(_features(update.model, images), which)

    return compare


@dataclasses.dataclass(frozen=True)
class _Target:
    """What the last layer got from each of B photographs, read off its gradient.

    Attributes:
        features: (B, F).
        silent: (B,) of which photographs the gradient says nothing.
    """

    features: Tensor
    silent: Tensor

    def distances(self, features: Tensor, which: Tensor) -> Tensor:
        """(T, n) of n images' features to those of T photographs, relative to the length of these."""
        mine, silent = self.features[which], self.silent[which]
        away = torch.cdist(mine, features, compute_mode=EXACT)
        lengths = mine.norm(dim=1).clamp(min=1e-12)
        return torch.where(silent[:, None], torch.inf, away / lengths[:, None])


def _check_once(seen: Observed, which: Tensor) -> None:
    """Raise `AtsError` where some of the photographs have a label that repeats in its batch."""
    mixed = ~_once(seen)
    if mixed.flatten()[which].any():
        labels = seen.labels[mixed.any(1)][0]
        raise AtsError(
            f"line_up: labels {labels.tolist()} repeat in a batch, so no row of the last layer is one "
            "image's own; use by='gradients'"
        )


def _observed_features(update: Update, seen: Observed) -> _Target:
    if _mixes(update):
        raise AtsError(
            "line_up: by='features' runs images side by side, which batch statistics do not allow; use by='gradients'"
        )
    gradients = unflatten(update.mean_gradients, update.model)
    own = [g for g, own in zip(gradients, of_last_layer(update.model), strict=True) if own]
    if len(own) < 2:
        raise AtsError(
            "line_up: by='features' needs a last linear layer whose weight and bias are shared; use by='gradients'"
        )
    weight, bias = own
    if seen.threat.batch > 1:
        rows = seen.labels.to(weight.device)
        if int(rows.max()) >= weight.shape[1]:
            raise AtsError(
                f"line_up: by='features' needs a row of the last layer for each label, and it has {weight.shape[1]}; "
                "use by='gradients'"
            )
        weight = weight.gather(1, rows[..., None].expand(*rows.shape, weight.shape[2])).flatten(
            0, 1
        )[:, None]
        bias = bias.gather(1, rows).flatten()[:, None]
    silent = ~(bias != 0).any(1)
    bias = torch.where(silent[:, None], 1.0, bias)  # said in `silent`
    return _Target(_precise(invert_linear(weight, bias)).cpu(), silent.cpu())


def _features(model: nn.Module, images: Tensor) -> Tensor:
    """What the last layer gets of images, (n, F)."""
    made: list[Tensor] = []

    def keep(features: Tensor) -> None:
        made.append(_precise(features.flatten(1)).cpu())

    with before_last(model, keep):
        for part in images.split(CHUNK):
            model(_as_the_model(part, model))
    return torch.cat(made)


def _precise(values: Tensor) -> Tensor:
    """In single precision at least: in half of it nothing can be compared."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _by_gradients(update: Update, seen: Observed) -> Compare:
    """By the directions of whole gradients: the distance of both, brought to length 1.

    The length says little in a batch, and nothing where clients clip.
    """
    observed = update.mean_gradients.repeat_interleave(seen.threat.batch, 0)
    labels = seen.labels.flatten()
    silent = ~(observed != 0).any(1).cpu()
    directions = F.normalize(_precise(observed), dim=1)

    def distances(images: Tensor, which: Tensor) -> Tensor:
        images = _as_the_model(images, update.model)
        label = labels[which[:1]].to(images.device).expand(len(images))
        made = F.normalize(_precise(example_gradients(update.model, images, label)), dim=1)
        return torch.cdist(directions[which.to(made.device)], made, compute_mode=EXACT).cpu()

    def compare(images: Tensor, which: Tensor) -> Tensor:
        # Some at a time: of a large network few gradients fit in memory.
        away = torch.cat([distances(part, which) for part in images.split(32)], 1)
        return torch.where(silent[which, None], torch.inf, away)

    return compare


class _Tries:
    """The images that clients can make of candidates: form, mirror image and crop of each.

    They are numbered as an array (K, forms, mirrors, rows, columns).
    """

    def __init__(self, photographs: Tensor, possible: list[Form], crop_flip: bool) -> None:
        self.photographs = photographs
        self.possible = possible
        self.mirrors = 2 if crop_flip else 1
        self.sides = 2 * PADDING + 1 if crop_flip else 1
        self.steps = (1, 2) if crop_flip else ()

    def shape(self, candidates: int) -> tuple[int, ...]:
        """Of all images of so many candidates."""
        return candidates, len(self.possible), self.mirrors, self.sides, self.sides

    def images(self, rows: Tensor, numbers: Tensor) -> Tensor:
        """(n, C, H, W) in [0, 1] of images by their numbers, candidates being `rows` of the
        photographs.
        """
        which, form, mirror, down, across = torch.unravel_index(numbers, self.shape(len(rows)))
        pixels = self.photographs[rows[which]]
        if self.sides > 1:
            offsets = torch.stack([down, across], 1)
            pixels = crop_and_mirror(pixels, offsets, mirror.bool(), padding=PADDING)
        made = torch.empty_like(pixels)
        for number in form.unique().tolist():
            own = form == number
            ids, signs = self.possible[number]
            drawn = torch.tensor(signs, dtype=torch.int64).expand(int(own.sum()), len(ids))
            made[own] = Policy(ids).apply_signs(pixels[own], drawn)
        return to_images(made)

    def middle(self, candidates: int) -> Tensor:
        """The numbers of all forms and mirror images at the middle crop."""
        numbers = torch.arange(torch.Size(self.shape(candidates)).numel())
        return numbers.view(self.shape(candidates))[..., self.sides // 2, self.sides // 2].flatten()

    def corners(self, numbers: Tensor, candidates: int) -> Tensor:
        """The numbers of the same forms at the four crops of which one is within two pixels of any."""
        *same, _, _ = torch.unravel_index(numbers, self.shape(candidates))
        first = torch.stack(same).T @ torch.tensor(_strides(self.shape(candidates))[:-2])
        own = [(PADDING + dy) * self.sides + PADDING + dx for dy in (-2, 2) for dx in (-2, 2)]
        return (first[:, None] + torch.tensor(own)).flatten()

    def neighbours(self, numbers: Tensor, candidates: int) -> Tensor:
        """The numbers of the same forms at crops one or two pixels away."""
        *same, down, across = torch.unravel_index(numbers, self.shape(candidates))
        found = []
        for step in self.steps:
            for dy, dx in itertools.product((-step, 0, step), repeat=2):
                y, x = down + dy, across + dx
                inside = (y >= 0) & (y < self.sides) & (x >= 0) & (x < self.sides)
                place = torch.stack([*same, y, x])[:, inside]
                strides = torch.tensor(_strides(self.shape(candidates)))
                found.append((place * strides[:, None]).sum(0))
        return torch.cat(found).unique() if found else numbers[:0]


def _strides(shape: tuple[int, ...]) -> list[int]:
    """How far apart neighbours along each dimension of a contiguous array are."""
    return [torch.Size(shape[i + 1 :]).numel() for i in range(len(shape))]


def _searched(
    comparisons: list[tuple[Tensor, Compare]],
    labels: Tensor,
    candidates: Tensor,
    tries: _Tries,
    *,
    same: float,
    complete: bool,
    most: int | None,
) -> LineUp:
    """`line_up` in one round. Photographs with the same candidates are searched side by side: an
    image that is tried for one is compared with the gradients of all.
    """
    result = _nothing_tried(*candidates.shape)
    for photographs, compare in comparisons:
        known = torch.cat([labels[:, None], candidates], 1)[photographs]
        groups = known.unique(dim=0, return_inverse=True)[1]
        for group in range(int(groups.max()) + 1):
            which = photographs[groups == group]
            away = _away(compare, which, candidates[which[0]], tries, same, complete, most)
            tried = ~away[0].isnan()
            _enter(result, which, away.where(~away.isnan(), torch.inf), tries)
            result.tried[which] = int(tried.sum())
    return result


def _nothing_tried(total: int, count: int) -> LineUp:
    """A result to be entered in, of so many photographs and candidates."""
    return LineUp(
        torch.full((total,), -1),
        torch.full((total, count), torch.inf),
        torch.zeros(total, 4, dtype=torch.int64),
        torch.zeros(total, dtype=torch.int64),
    )


def _enter(result: LineUp, which: Tensor, away: Tensor, tries: _Tries) -> None:
    """Enter what distances (T, images) say of T photographs; infinite where not tried."""
    count = result.distances.shape[1]
    nearest = away.argmin(1)
    result.distances[which] = away.view(len(which), count, -1).amin(2)
    told = away.isfinite().any(1)
    candidate, form, mirror, down, across = torch.unravel_index(nearest, tries.shape(count))
    if tries.sides == 1:
        down, across = (torch.full_like(nearest, PADDING) for _ in range(2))
    result.guess[which] = torch.where(told, candidate, -1)
    result.draws[which] = torch.stack([down, across, mirror, form], 1)


def _away(
    compare: Compare,
    which: Tensor,
    rows: Tensor,
    tries: _Tries,
    same: float,
    complete: bool,
    most: int | None,
) -> Tensor:
    """Distances (T, images) of T photographs with the candidates `rows`; nan where not tried."""
    size = torch.Size(tries.shape(len(rows))).numel()
    away = torch.full((len(which), size), torch.nan)
    opened = torch.zeros(len(which), size, dtype=torch.bool)

    def look(numbers: Tensor) -> None:
        for part in numbers.split(4 * CHUNK):
            away[:, part] = compare(tries.images(rows, part), which).to(away)

    if complete:
        look(torch.arange(size))
        return away
    limit = size if most is None else min(size, most)
    middle = tries.middle(len(rows))
    look(middle[:limit])
    lost = away[:, middle].amin(1) >= same
    if tries.sides > 1 and lost.any() and limit > len(middle):
        best = away[lost][:, middle].topk(max(len(middle) // 4, 1), largest=False).indices.unique()
        look(tries.corners(middle[best], len(rows))[: limit - len(middle)])
    first = FIRST
    while (tried := ~away[0].isnan()).sum() < limit:
        open_ones = torch.where(opened | away.isnan(), torch.inf, away)
        waiting = (away.where(~away.isnan(), torch.inf).amin(1) >= same) & open_ones.isfinite().any(
            1
        )
        if not waiting.any():
            break
        nearest = open_ones[waiting].topk(min(int(first), size), largest=False)
        first *= GROWTH
        numbers = nearest.indices[nearest.values.isfinite()].unique()
        for row in waiting.nonzero().flatten().tolist():
            opened[row, numbers] = True
        new = tries.neighbours(numbers, len(rows))
        new = new[~tried[new]]
        if len(new):
            look(new[: limit - int(tried.sum())])
    return away
