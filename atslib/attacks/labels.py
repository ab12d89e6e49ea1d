"""Labels restored from the gradient of the last layer alone.

Row n of that gradient is the mean over the batch of (p_n - [label is n]) · features, and its bias
has the mean of p_n - [label is n] itself. So how often class n occurs is the sum of p_n minus the
batch size times the bias's gradient, and all that a server lacks is p, the class probabilities of
images that it does not see.
"""

import dataclasses
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atslib.clients.observe import Observed, Update
from atslib.data.images import describe
from atslib.errors import AtsError, choose
from atslib.gradients.inputs import scores_of
from atslib.gradients.problems import example_gradients, unflatten
from atslib.models import Ends, ends_of, loss_of, shared_parameters
from atslib.rng import as_stream

DUMMIES = 64  # images of the server's own that tell how features and probabilities vary
ROUNDS = 8  # of counting and estimating probabilities in turn; more change nothing
TRIED = 8  # of these, on which the rule for a single image is tried
FAINT = 1e-3  # of the largest: a gradient that may be rounding
ROUNDING = 0.02  # of a probability, in any precision
APART = 0.5  # of sums of cosines, by which the label's row has to point more against the others
DOUBT = (
    0.05  # of a mean over classes: the error of p in a class against what sets its own images apart
)


def infer_labels(seen: Observed) -> Tensor:
    """The label of each single-image gradient, (N, 1): the class whose last-layer gradient is most
    negative.

    The cross-entropy's gradient at the logits is softmax - onehot, negative at the true class only;
    the bias shows it, and so does the weight's row where the features are not negative. Exact for
    those networks. Source: Zhao et al. 2020 (iDLG), arXiv:2001.02610. Without a bias, and with
    features of both signs, as a layer normalization makes them, it is the class whose row points
    against all others.

    Whether the rule holds is seen on images of the server's own, whose labels it knows: a network
    may compute its scores from what its last layer gives.

    Raises:
        AtsError: the last layer is not linear, or does not give the scores; or nothing tells its
            label, as of two classes without a bias and with features of both signs.
    """
    update = seen.updates[0]
    ends = seen_ends(update.model, seen.shape)
    layer = update.model.get_submodule(ends.head)
    if (
        not isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d)
        or len(layer.weight) != ends.classes
    ):
        raise AtsError(
            f"labels cannot be inferred: the last layer {ends.head!r} is no linear layer of {ends.classes} rows"
        )
    made = torch.Generator().manual_seed(0)
    dummies = torch.rand(DUMMIES, *seen.shape, generator=made).to(update.gradients)
    positive = layer.bias is None and bool(
        (_before_last(update.model, layer, dummies)[0] >= 0).all()
    )

    def told(gradients: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias = last_gradients(gradients, update.model, ends, "inferred")
        if bias is not None:
            return bias.argmin(1), bias
        return without_bias(weight.flatten(2), positive), weight

    labels, _ = told(update.gradients)
    _check_rule(update.model, dummies[:TRIED], ends, told)
    return labels.unsqueeze(1)


def _check_rule(
    model: nn.Module,
    images: Tensor,
    ends: Ends,
    told: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> None:
    """Raise `AtsError` unless a rule tells the labels of the server's own images, as far as these
    have a gradient in the last layer.
    """
    labels = torch.arange(len(images), device=images.device) % ends.classes
    try:
        gradients = example_gradients(model, images, labels).detach()
    except AtsError:  # it takes no single image, say: that is told elsewhere
        return
    own, entries = told(gradients)
    size = entries.flatten(1).abs().amax(1)
    if bool(((own != labels) & (size > FAINT * size.amax())).any()):
        raise AtsError(
            f"labels cannot be inferred: the scores are not what the last layer {ends.head!r} gives, as its gradient of "
            "other images shows; let the server know them (ThreatModel.labels='known')"
        )


def without_bias(rows: Tensor, positive: bool) -> Tensor:
    """The label of each single-image gradient, (N,), by the rows (N, K, M) of the last layer's
    weight: row n is (p_n - [label is n]) · features.

    Args:
        positive: whether features are not negative. Then the label's row is the negative one; else
            the one that points against all others, which takes three of them.
    Raises:
        AtsError: no row does.
    """
    if positive:
        return rows.sum(2).argmin(1)
    directions = F.normalize(rows.double(), dim=2)
    alike = directions @ directions.transpose(1, 2)
    against = alike.sum(2) - alike.diagonal(dim1=1, dim2=2)
    least, order = against.sort(1)
    if not bool((least[:, 1] - least[:, 0] > APART).all()):
        raise AtsError(
            "labels cannot be inferred: the last layer has no bias and gets features of both signs, and no row of its "
            "gradient points against two others; let the server know them (ThreatModel.labels='known')"
        )
    return order[:, 0]


def _before_last(model: nn.Module, layer: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """What the last layer gets of images (J, C, H, W) in [0, 1], and the scores."""
    found = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    try:
        with torch.no_grad():
            scores = scores_of(model, images)
    finally:
        hook.remove()
    return found[-1], scores


def seen_ends(model: nn.Module, shape: Sequence[int]) -> Ends:
    """How a network ends; it is run on black images of `shape`, (C, H, W), unless it was seen
    running before.

    Raises:
        AtsError: it does not take such images.
    """
    if ends_of(model) is None:
        like = next(model.parameters())
        with torch.no_grad():
            scores_of(model, torch.zeros(2, *shape).to(like))  # batch statistics need two
    return ends_of(model)


def last_gradients(
    gradients: Tensor, model: nn.Module, ends: Ends, what: str
) -> tuple[Tensor | None, Tensor | None]:
    """The columns of (N, P) that are of the last layer's weight and bias, (N, K, ...) and (N, K).

    Raises:
        AtsError: what is needed is frozen, or the weight is computed from other parameters.
    """
    own = dict(zip(shared_parameters(model), unflatten(gradients, model), strict=True))
    names = {id(p): name for name, p in model.named_parameters()}
    layer = model.get_submodule(ends.head)
    weight = own.get(names.get(id(layer.weight)))
    bias = None
    if layer.bias is not None:
        bias = own.get(names.get(id(layer.bias)))
    if what == "inferred" and bias is not None:  # which tells them alone
        return weight, bias
    if id(layer.weight) not in names:
        raise AtsError(
            f"labels cannot be {what}: the weight of the last layer {ends.head!r} is computed from other parameters"
        )
    if weight is None or (bias is None and layer.bias is not None):
        raise AtsError(
            f"labels cannot be {what}: the last layer {ends.head!r} is frozen, and its gradient not shared"
        )
    return weight, bias


def initial_logits(seen: Observed, rng: torch.Generator) -> Tensor:
    """Where one member's labels start if they are optimized too: (batch · K,) logits from N(0, 1),
    as in DLG.
    """
    classes = seen_ends(seen.updates[0].model, seen.shape).classes
    return torch.randn(seen.threat.batch * classes, generator=rng, device=rng.device)


@dataclasses.dataclass(frozen=True)
class Head:
    """The last layer of a network, what N clients said of it, and what it gets from images of the
    server's own.

    Attributes:
        weight, bias: (K, M) and (K,) of the layer; no bias is one of zeros.
        rows: (N, K, M), the mean gradient of its weight.
        shift: (N, K), that of its bias; None where it has none.
        dummies: (J, M), its inputs for J images of the server's own.
    """

    weight: Tensor
    bias: Tensor
    rows: Tensor
    shift: Tensor | None
    dummies: Tensor


def head(update: Update, images: Tensor) -> Head:
    """The last layer of the update's network, in double precision; `images` (J, C, H, W) in [0, 1]
    are the server's.

    Raises:
        AtsError: it is no linear layer, or its output is not the scores.
    """
    model = update.model
    images = images.to(update.gradients)
    ends = seen_ends(model, images.shape[1:])
    last = model.get_submodule(ends.head)
    if not isinstance(last, nn.Linear) or last.out_features != ends.classes:
        raise AtsError(
            f"labels cannot be restored: the last layer is a {type(last).__name__}, and must be a Linear"
        )
    weight, bias_gradient = last_gradients(update.mean_gradients, model, ends, "restored")
    features, scores = _before_last(model, last, images)
    if features.ndim != 2:
        raise AtsError(
            f"labels cannot be restored: the last layer gets {describe(features)}, and must get (B, M)"
        )
    bias = torch.zeros_like(last.weight[:, 0]) if last.bias is None else last.bias
    chances = F.linear(features.double(), last.weight.double(), bias.double()).softmax(1)
    if bool(((chances - scores.double().softmax(1)).abs() > ROUNDING).any()):
        raise AtsError(
            f"labels cannot be restored: the scores are not what the last layer {ends.head!r} gives; let the server know "
            "them (ThreatModel.labels='known')"
        )
    return Head(
        weight=last.weight.detach().double(),
        bias=bias.detach().double(),
        rows=weight.double(),
        shift=None if bias_gradient is None else bias_gradient.double(),
        dummies=features.double(),
    )


def to_counts(estimate: Tensor, batch: int, least: Tensor | None = None) -> Tensor:
    """The whole numbers (N, K) of least squared distance to an estimate (N, K), each at least
    `least`, that sum to `batch`.

    A bound whose sum is beyond `batch` is dropped.
    """
    counts = torch.zeros_like(estimate) if least is None else least.to(estimate)
    counts = torch.where(counts.sum(1, keepdim=True) > batch, 0, counts)
    for _ in range(
        batch
    ):  # each unit goes where it gains most: exact, since the squares are convex
        missing = (counts.sum(1, keepdim=True) < batch).to(counts)
        counts.scatter_add_(1, (estimate - counts).argmax(1, keepdim=True), missing)
    return counts


def idlg(each: Head, batch: int) -> Tensor:
    """The most negative row, for one image. Source: Zhao et al. 2020, arXiv:2001.02610."""
    if batch > 1:
        raise AtsError(f"the rule 'idlg' tells the label of one image; ThreatModel.batch={batch}")
    positive = bool((each.dummies >= 0).all())
    told = without_bias(each.rows, positive) if each.shift is None else each.shift.argmin(1)
    return F.one_hot(told, each.rows.shape[1]).double()


def minima(each: Head, batch: int) -> Tensor:
    """The classes of the `batch` least entries, each at most once.

    Source: Yin et al. 2021 (GradInversion), Eq. 7.
    """
    if batch > (classes := each.rows.shape[1]):
        raise AtsError(
            f"the rule 'minima' tells each label once: {batch} images of {classes} classes cannot be told"
        )
    return torch.zeros_like(each.rows[..., 0]).scatter(
        1, each.rows.amin(2).argsort(1)[:, :batch], 1
    )


def published(each: Head, batch: int) -> Tensor:
    """Eq. 15-16 of Geng et al. 2021: p and the mean feature sum are those of the dummy data."""
    chance = (each.dummies @ each.weight.T + each.bias).softmax(1).mean(0)
    return batch * (chance - each.rows.sum(2) / each.dummies.sum(1).mean())


def features(each: Head, batch: int) -> Tensor:
    """This project's: p of the batch itself, by the logits that its gradient gives away.

    Row n of the gradient, taken through the weight, is the mean of (p_n - [label is n]) · logits.
    So every class tells the batch's mean logits, one that does not occur all but exactly, the
    others up to how their own images differ from it; and given that mean, the logits of each class
    that does occur. They give p, p the counts, and counts the weights of the mean, in turn. How
    logits vary between images is taken from the dummy data. Two facts need no estimate: a class
    whose bias has a negative gradient occurs, and so does one with a negative entry in its row
    where no feature is negative.
    """
    centre = each.dummies.mean(0)
    weight = each.weight
    spread = (
        each.dummies - centre
    ) @ weight.T  # (J, K), as all logits here without the bias of the layer
    shift = each.rows @ centre / centre.square().sum() if each.shift is None else each.shift
    # sums over the batch, (N, K) and (N, K, K)
    excess = batch * shift
    rows = batch * each.rows @ weight.T
    tiny = 1e-9 * each.rows.abs().amax((1, 2)).clamp_min(1e-300).unsqueeze(1)
    least = (shift < -tiny) & (each.shift is not None)
    least = least | ((each.rows.amin(2) < -tiny) & bool((each.dummies >= 0).all()))

    def sums(mean: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities of images that vary about mean logits (N, K), summed over a batch: (N, J,
        K) and (N, K).
        """
        parts = batch / len(spread) * ((mean + each.bias).unsqueeze(1) + spread).softmax(2)
        return parts, parts.sum(1)

    mean = torch.einsum("nk,nkl->nl", excess.sign(), rows) / excess.abs().sum(
        1, keepdim=True
    ).clamp_min(1e-300)
    parts, about = sums(mean)
    chance = about
    for _ in range(ROUNDS):
        counts = to_counts(chance - excess, batch, least)
        share = excess / (counts + DOUBT * about.square()).clamp_min(1e-300)
        share = share / (share * excess).sum(1, keepdim=True).clamp_min(1e-300)
        mean = (
            torch.einsum("nk,nkl->nl", share, rows)
            - torch.einsum("nk,njk->nj", share, parts) @ spread
        )
        parts, about = sums(mean)
        n, k = counts.nonzero(as_tuple=True)  # one line for each class that occurs in a batch
        own = about[n, k, None] * mean[n] + parts[n, :, k] @ spread - rows[n, k]
        often = counts[n, k, None]
        own = mean[n] + (own - often * mean[n]) / (often + DOUBT * about[n, k, None].square())
        told = often * ((own + each.bias).unsqueeze(1) + spread).softmax(2).mean(1)
        chance = torch.zeros_like(about).index_add(0, n, told)
    return to_counts(chance - excess, batch, least)


# (last layer, images in a batch) → how often each class occurs, (N, K), to be rounded.
RULES: dict[str, Callable[[Head, int], Tensor]] = {
    "features": features,
    "published": published,
    "minima": minima,
    "idlg": idlg,
}


def restore_labels(seen: Observed, *, rng: torch.Generator | int, rule: str = "features") -> Tensor:
    """The labels of each batch, as a multiset.

    Args:
        seen: gradients of `ThreatModel.batch` images each; of several updates of a batch the
            estimates are averaged.
        rng: the stream of the dummy data, or a seed for one.
        rule: a key of `RULES`: this project's, the "published" one of Geng et al. 2021 ("Towards
            General Deep Leakage in Federated Learning"), that of GradInversion, or iDLG's.
    Returns:
        (N, batch) int64, sorted: a gradient does not tell the order of its images.
    Raises:
        AtsError: the last layer is not linear, or the rule does not hold for so many images.
    """
    choose("restore_labels: rule", rule, RULES)
    if not isinstance(seen, Observed):
        raise AtsError(
            f"restore_labels: seen is a {type(seen).__name__}; give what atslib.observe returned"
        )
    images = dummy_images(seen, as_stream(rng), rule)
    batch = seen.threat.batch
    estimates = [RULES[rule](head(update, images), batch) for update in seen.updates]
    counts = to_counts(torch.stack(estimates).mean(0), batch).long()
    classes = torch.arange(counts.shape[1], device=counts.device)
    return torch.stack([classes.repeat_interleave(each) for each in counts])


def labelled(seen: Observed, rng: torch.Generator) -> Observed:
    """What was seen, with its restored labels where the threat model wants them."""
    if seen.labels is not None:
        return seen
    if any(loss_of(update.model) is not F.cross_entropy for update in seen.updates):
        raise AtsError(
            "labels are restored from gradients of the cross-entropy alone, and the network has a loss of its own; "
            "let the server know them (ThreatModel.labels='known')"
        )
    if seen.threat.labels != "restored":
        return seen
    return dataclasses.replace(seen, labels=restore_labels(seen, rng=rng))


def dummy_images(seen: Observed, rng: torch.Generator, rule: str) -> Tensor:
    """Images that a server makes up, (J, C, H, W) in [0, 1]: U(0, 1) in each pixel as published,
    else in blocks.

    Blocks of four pixels, smoothed, make features vary about as much as those of photographs.
    """
    channels, *size = seen.shape
    coarse = size if rule == "published" else [max(1, side // 4) for side in size]
    drawn = torch.rand(DUMMIES, channels, *coarse, generator=rng, device=rng.device)
    return F.interpolate(drawn, size, mode="bilinear", align_corners=False).to(
        seen.updates[0].gradients
    )
