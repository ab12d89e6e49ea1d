"""Layers that torch differentiates once, or not for several problems at a time, in a form without
that limit.

An attack needs the second derivative of a network. torch has none of a hard sigmoid, of fused
attention and of distances between points, and its second derivatives of layer and instance
normalization under `torch.func.vmap` are wrong, by 12 and 66 % in an example of torch 2.13. The
forms here are written in operations that have all of it; their values are torch's, up to rounding.
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
    """`torch.cdist`."""
    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), ord=p, dim=-1)


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
