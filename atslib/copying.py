"""Copies of networks that share no state: buffers, counters and what a network keeps between calls.

A forward pass can change a network: a counter moves, an own running mean, the vector of a spectral
norm, or a tensor made of a parameter is kept for the next call. So what checks a network runs a
copy, and so does every gradient of a network that a pass changes.
"""

import collections
import copy
import functools
import threading
import types
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from atslib.errors import AtsError

# Where in a network something lies: the name of a layer, then attributes and keys.
Place = tuple[str, tuple[object, ...]]

# Notes that this library leaves on a network begin so; they are no state of the network.
NOTES = "_atslib"

# What a deep copy refuses, and a copy of a network needs anew, since nobody waits for it.
_ANEW: dict[type, Callable[[object], object]] = {
    type(threading.Lock()): lambda _: threading.Lock(),
    type(threading.RLock()): lambda _: threading.RLock(),
    threading.Condition: lambda _: threading.Condition(),
    threading.Event: lambda _: threading.Event(),
    threading.Semaphore: lambda old: threading.Semaphore(old._value),
    threading.BoundedSemaphore: lambda old: threading.BoundedSemaphore(old._value),
    threading.local: lambda _: threading.local(),
}


def deep_copy(model: nn.Module, memo: dict[int, object] | None = None) -> nn.Module:
    """A deep copy, also of networks that `copy.deepcopy` refuses.

    Tensors that torch computed, such as a kept activation or the weight of `nn.utils.weight_norm`,
    are copied as values, without what they were computed from; a lock is made anew; a generator has
    the state of the original.

    Args:
        memo: as of `copy.deepcopy`: by id of an object what stands for it; gets what was copied.
    Raises:
        AtsError: something in it cannot be copied; the sentence names the attribute.
    """
    memo = {} if memo is None else memo
    memo |= _substitutes(model, memo)
    try:
        with (
            torch.no_grad()
        ):  # else the copies of scripted networks are computed from the originals
            twin = copy.deepcopy(model, memo)
    except Exception as error:
        raise AtsError(_refusal(model, error)) from None
    for own, theirs in zip(twin.parameters(), model.parameters(), strict=True):
        own.requires_grad_(theirs.requires_grad)  # those of scripted networks are all frozen
    return twin


def _substitutes(model: nn.Module, known: dict[int, object]) -> dict[int, object]:
    """What stands in a copy for what a deep copy refuses, by id, as far as it is not known."""
    found: dict[int, object] = {}
    for value in _reachable(model):
        if id(value) in known:
            continue
        if isinstance(value, Tensor):
            if not value.is_leaf:
                found[id(value)] = value.detach().clone()
        elif isinstance(value, torch.Generator):
            found[id(value)] = value.clone_state()
        elif type(value) in _ANEW:
            found[id(value)] = _ANEW[type(value)](value)
    return found


def apart(
    model: nn.Module,
    *,
    draws: bool = False,
    empty: Sequence[Place] = (),
    like: nn.Module | None = None,
) -> nn.Module:
    """A copy with the very same parameters, and buffers, counters and kept tensors of its own.

    What a run of it changes is not seen in `model`. A scripted network's parameters are copied too,
    since torch cannot share them.

    Args:
        draws: whether it draws from the generators of `model` itself, which then move on.
        empty: places of `like`, by default of `model`, in which a tensor is kept that the copy has
            to compute itself.
    """
    memo: dict[int, object] = {}
    for value in _reachable(model):
        if isinstance(value, nn.Parameter) or (draws and isinstance(value, torch.Generator)):
            memo[id(value)] = value
    twin = deep_copy(model, memo)
    for name, path in empty:
        layer = (model if like is None else like).get_submodule(name)
        _emptied(memo.get(id(layer)), path)
    return twin


def moved(before: object, after: object) -> bool:
    """Whether two copies of a network differ in a number, a text or a tensor that they hold."""
    return not _alike(before, after, set())


def moved_layers(before: nn.Module, after: nn.Module) -> list[str]:
    """Names of the layers that differ between two copies of a network in what they hold themselves;
    layers within them count by themselves.
    """
    pairs = list(zip(before.modules(), after.modules(), strict=True))
    inner = {(id(a), id(b)) for a, b in pairs}
    names = [name for name, _ in before.named_modules()]

    def own(layer: nn.Module) -> dict[str, object]:
        return {key: value for key, value in vars(layer).items() if key != "_modules"}

    return [
        name
        for name, (a, b) in zip(names, pairs, strict=True)
        if not _alike(own(a), own(b), set(inner))
    ]


def kept_tensors(model: nn.Module) -> dict[Place, Tensor]:
    """Tensors that layers hold and that are neither parameters nor buffers, by place.

    Those in dicts, lists and plain objects of a layer are among them.
    """
    found: dict[Place, Tensor] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            continue
        for key, value in vars(layer).items():
            if key in _TORCHS or key.startswith(NOTES):
                continue
            for path, tensor in _tensors(value, (key,), set()):
                found[name, path] = tensor
    return found


# Attributes of every module that torch manages
_TORCHS = frozenset(vars(nn.Module()))


def _tensors(
    value: object, path: tuple[object, ...], seen: set[int]
) -> Iterator[tuple[tuple[object, ...], Tensor]]:
    if isinstance(value, Tensor):
        if not isinstance(value, nn.Parameter):
            yield path, value
        return
    if isinstance(value, nn.Module) or id(value) in seen:
        return
    seen.add(id(value))
    for key, part in _parts(value):
        yield from _tensors(part, (*path, key), seen)


def _parts(value: object) -> list[tuple[object, object]]:
    """What a container or a plain object holds, by key, place or attribute."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, list | tuple | collections.deque):
        return list(enumerate(value))
    if isinstance(value, set | frozenset):
        return list(enumerate(value))
    if isinstance(value, functools.partial):
        return [("args", value.args), ("keywords", value.keywords)]
    if isinstance(value, types.MethodType):
        return [("__self__", value.__self__)]
    plain = isinstance(value, type | types.FunctionType | types.ModuleType | torch.jit.ScriptModule)
    return [] if plain else list(getattr(value, "__dict__", {}).items())


def _emptied(owner: object, path: tuple[object, ...]) -> None:
    """Take what is kept at a place out of its container; an attribute is None then."""
    *way, last = path
    for key in way:
        if owner is None:
            return
        owner = _part(owner, key)
    if isinstance(owner, dict):
        owner.pop(last, None)
    elif isinstance(owner, list | collections.deque):
        owner.clear()
    elif owner is not None and not isinstance(owner, tuple):
        owner.__dict__[last] = None


def _part(owner: object, key: object) -> object:
    if isinstance(owner, dict):
        return owner.get(key)
    if isinstance(owner, list | tuple | collections.deque):
        return owner[key] if key < len(owner) else None
    return getattr(owner, "__dict__", {}).get(key)


def _reachable(model: object) -> Iterator[object]:
    """All objects that a deep copy of a network would copy, each once."""
    seen: dict[int, object] = {}
    left = [model]
    while left:
        value = left.pop()
        if id(value) in seen or isinstance(value, str | bytes | int | float | None):
            continue
        seen[id(value)] = value
        yield value
        if not isinstance(value, Tensor) and type(value) not in _ANEW:
            left.extend(part for _, part in _parts(value))


def _alike(a: object, b: object, seen: set[tuple[int, int]]) -> bool:
    if a is b or (id(a), id(b)) in seen:
        return True
    if type(a) is not type(b):
        return False
    seen.add((id(a), id(b)))
    if isinstance(a, Tensor):
        return _same_values(a, b)
    if isinstance(a, str | bytes | int | float | complex | set | frozenset):
        return a == b or a != a
    if isinstance(a, np.ndarray):
        return a.dtype == object or np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    if isinstance(a, torch.Generator) or type(a) in _ANEW:
        return True  # copies share the one, and nobody waits for the other
    ours, theirs = (
        [(k, v) for k, v in _parts(value) if not str(k).startswith(NOTES)] for value in (a, b)
    )
    if len(ours) != len(theirs):
        return False
    if isinstance(a, dict):
        pairs = [(v, b.get(k, AtsError)) for k, v in ours]
    else:
        pairs = [(v, w) for (_, v), (_, w) in zip(ours, theirs, strict=True)]
    return all(_alike(v, w, seen) for v, w in pairs)


def _same_values(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or a.is_meta or b.is_meta:
        return a.shape == b.shape and a.dtype == b.dtype
    a, b = a.detach(), b.detach()
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _refusal(model: nn.Module, error: Exception) -> str:
    """Which attribute cannot be copied, and what to do."""
    why = " ".join(str(error).split())[:120]
    known = {id(each): each for each in model.modules()}
    known |= _substitutes(model, known)
    for name, layer in model.named_modules():
        for key, value in vars(layer).items():
            try:
                with torch.no_grad():
                    copy.deepcopy(value, dict(known))
            except Exception as own:
                place = f"{name}.{key}" if name else key
                own = " ".join(str(own).split())[:120]
                return (
                    f"{type(model).__name__} cannot be copied: {place!r} is a {type(value).__name__} ({own}); "
                    "set it to None, and attach it again afterwards"
                )
    return (
        f"{type(model).__name__} cannot be copied ({why}); give a network that copy.deepcopy takes"
    )
