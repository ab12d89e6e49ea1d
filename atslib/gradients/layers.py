"""Layers that torch differentiates once, or not for several problems at a time, in a form without
that limit.

An attack needs the second derivative of a network. torch has none of a hard sigmoid, of fused
attention and of distances between points, and its second derivatives of layer and instance
normalization under `torch.func.vmap` are wrong, by 12 and 66 % in an example of torch 2.13. At a
vector of zeros its second derivative of a norm is nan.

The forms here are written in operations that have all of it; their values are torch's, up to rounding.
`LAYERS` says which function each stands for.
"""

import math
import types
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def hardsigmoid(x: Tensor, inplace: bool = False) -> Tensor:
    """`F.hardsigmoid`."""
    out = F.relu6(x + 3) / 6
    return x.copy_(out) if inplace else out


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`F.scaled_dot_product_attention`, written out."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (part.repeat_interleave(groups, -3) for part in (key, value))
    scores = (
        query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    )
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is None:
        weights = scores.softmax(-1)
    else:
        hidden = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask == -torch.inf
        scores = scores if attn_mask.dtype == torch.bool else scores + attn_mask
        alone = hidden.all(-1, keepdim=True)  # what may look at nothing gets zeros
        weights = torch.where(hidden & ~alone, -torch.inf, torch.where(alone, 0.0, scores)).softmax(
            -1
        )
        weights = torch.where(alone, 0.0, weights)
    return F.dropout(weights, dropout_p) @ value if dropout_p else weights @ value


def cdist(x: Tensor, y: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """`torch.cdist`; between equal points with slope 0, as torch's own."""
    return vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)


def vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    **options: object,
) -> Tensor:
    """`torch.linalg.vector_norm`, with all slopes 0 at a vector of zeros, where torch's second one
    is nan.
    """
    if not x.numel() or not x.ndim or options:
        return torch.linalg.vector_norm(x, ord, dim, keepdim, **options)
    dims = tuple(range(x.ndim)) if dim is None else dim
    zeros = x.detach().abs().amax(dims, keepdim=True) == 0
    out = torch.linalg.vector_norm(torch.where(zeros, 1.0, x), ord, dims, keepdim=True)
    out = torch.where(zeros, 0.0, out)
    return out if keepdim else out.squeeze(dims)


def norm(
    x: Tensor,
    p: float | str | None = "fro",
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    **options: object,
) -> Tensor:
    """`torch.norm`; the Euclidean ones as `vector_norm`."""
    if p not in ("fro", 2, None) or any(value is not None for value in options.values()):
        return torch.norm(x, p, dim, keepdim, **options)
    return vector_norm(x, 2, dim, keepdim)


def linalg_norm(
    x: Tensor,
    ord: float | str | None = None,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    **options: object,
) -> Tensor:
    """`torch.linalg.norm`; the Euclidean ones of vectors as `vector_norm`."""
    of_vectors = isinstance(dim, int) or (dim is None and x.ndim == 1)
    if options or not (ord is None or (ord == 2 and of_vectors)):
        return torch.linalg.norm(x, ord, dim, keepdim, **options)
    return vector_norm(x, 2, dim, keepdim)


def normalize(
    x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    """`F.normalize`."""
    if out is not None:
        return F.normalize(x, p, dim, eps, out)
    return x / vector_norm(x, p, dim, keepdim=True).clamp_min(eps)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """`F.cosine_similarity`."""
    x1, x2 = torch.broadcast_tensors(x1, x2)
    return (normalize(x1, 2, dim, eps) * normalize(x2, 2, dim, eps)).sum(dim)


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """`F.layer_norm`."""
    variance, mean = torch.var_mean(
        x, list(range(-len(normalized_shape), 0)), correction=0, keepdim=True
    )
    out = (x - mean) * torch.rsqrt(variance + eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`F.instance_norm` without running statistics; with them, or on a single value, it is torch's
    own.
    """
    if running_mean is not None or not use_input_stats or x.shape[2:].numel() < 2:
        return F.instance_norm(
            x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
        )
    variance, mean = torch.var_mean(x, list(range(2, x.ndim)), correction=0, keepdim=True)
    out = (x - mean) * torch.rsqrt(variance + eps)
    column = (-1, *[1] * (x.ndim - 2))
    out = out if weight is None else out * weight.view(column)
    return out if bias is None else out + bias.view(column)


def _opened(function: types.FunctionType) -> Callable:
    """A function of torch, in Python, without its question whether somebody wants to stand in for
    it.

    While a mode is active torch hands over such a function as a whole. Called in this form its
    parts are handed over.
    """
    own = {**function.__globals__, "has_torch_function": lambda tensors: False}
    opened = types.FunctionType(
        function.__code__, own, function.__name__, function.__defaults__, function.__closure__
    )
    opened.__kwdefaults__ = function.__kwdefaults__
    return opened


# What stands in for a function of torch.
LAYERS: dict[Callable, Callable] = {
    F.hardsigmoid: hardsigmoid,
    F.layer_norm: layer_norm,
    F.instance_norm: instance_norm,
    F.scaled_dot_product_attention: attention,
    torch.cdist: cdist,
    torch.linalg.vector_norm: vector_norm,
    torch.norm: norm,
    torch.Tensor.norm: norm,
    torch.linalg.norm: linalg_norm,
    F.normalize: normalize,
    torch.cosine_similarity: cosine_similarity,
    F.cosine_similarity: cosine_similarity,
}

# Functions that are seen part by part: their parts are among `LAYERS`.
OPENED: dict[Callable, Callable] = {
    F.multi_head_attention_forward: _opened(F.multi_head_attention_forward)
}

# What draws at random. A probe of a network leaves it out, so that two runs can be compared.
DRAWN = (
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
    torch.dropout,
)
