"""Copies of networks that share no state: buffers, counters and what a network keeps between calls.

A forward pass can change a network: a counter moves, an own running mean, the vector of a spectral
norm, or a tensor made of a parameter is kept for the next call. So what checks a network runs a
copy, and so does every gradient of a network that a pass changes.
"""

import collections
import contextlib
import copy
import functools
import gc
import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

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
    cells = _functions(model, memo)
    try:
        with (
            torch.no_grad()
        ):  # else the copies of scripted networks are computed from the originals
            twin = copy.deepcopy(model, memo)
            for old, new in cells:
                new.cell_contents = _of_cell(old.cell_contents, memo)
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


def _functions(
    model: nn.Module, memo: dict[int, object]
) -> list[tuple[types.CellType, types.CellType]]:
    """Enter a copy of each function that a network holds together with variables of its own, such
    as a hook that counts; and of these the old and the new variables, still empty.
    """
    cells: dict[int, tuple[types.CellType, types.CellType]] = {}
    found = [value for value in _reachable(model) if id(value) not in memo]
    for function in found:
        if not isinstance(function, types.FunctionType) or not _parts(function):
            continue
        own = []
        for cell in function.__closure__:
            if _is_filled(cell):
                own.append(cells.setdefault(id(cell), (cell, types.CellType()))[1])
            else:
                own.append(cell)
        known = function.__code__, function.__globals__, function.__name__, function.__defaults__
        twin = types.FunctionType(*known, tuple(own))
        twin.__kwdefaults__ = function.__kwdefaults__
        twin.__module__, twin.__qualname__ = function.__module__, function.__qualname__
        twin.__dict__.update(function.__dict__)
        memo[id(function)] = twin
    for kept in found:
        if isinstance(kept, _LRU):
            inner = memo.get(id(kept.__wrapped__), kept.__wrapped__)
            memo[id(kept)] = functools.lru_cache(**kept.cache_parameters())(inner)
    return list(cells.values())


def _of_cell(value: object, memo: dict[int, object]) -> object:
    """A copy of a function's variable; what cannot be copied, such as a module, is shared."""
    try:
        return copy.deepcopy(value, memo)
    except Exception:
        return value


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # of a name that nothing has been given to yet
        return False
    return True


_LRU = functools._lru_cache_wrapper


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


class Outside(NamedTuple):
    """A value outside a network that its code names.

    Attributes:
        value: a number, a tensor, what holds them, or a function that keeps its results.
        owner: the class, the variables of a module or the variable of a function that it is in;
            None for defaults of a function, which nothing puts others in the place of.
        key: its name there.
    """

    value: object
    owner: object
    key: str


def outside(model: nn.Module) -> dict[str, Outside]:
    """What the network's classes share, and the variables of their modules that their code, its
    hooks and the functions that these call name, by a name for messages. No copy has these for
    itself.

    torch's own classes and functions are passed over.
    """
    reach = _Reach()
    reach.use("forward")
    classes = {each for layer in model.modules() for each in type(layer).__mro__[:-1]}
    for kind in sorted(classes, key=lambda kind: (kind.__module__, kind.__qualname__)):
        reach.add_class(kind)
    reach.left += [value for value in _reachable(model) if isinstance(value, types.FunctionType)]
    while reach.left:
        reach.add_function(reach.left.pop())
    return reach.found


class _Reach:
    """What the code of a network can reach outside it, by a name for messages.

    Of the methods of classes those count whose names are used somewhere in that code: packages hold
    much that no forward pass comes to.
    """

    def __init__(self) -> None:
        self.found: dict[str, Outside] = {}
        self.left: list[types.FunctionType] = []  # whose code was not looked at yet
        self._used: set[str] = set()
        self._unused: dict[str, list[types.FunctionType]] = {}
        self._seen: set[int] = set()

    def use(self, name: str) -> None:
        """Code names this."""
        self._used.add(name)
        self.left += self._unused.pop(name, [])

    def add_class(self, kind: type) -> None:
        """What a class holds, and its methods as far as they are used."""
        if not self._is_new(kind):
            return
        for key, value in list(vars(kind).items()):
            if not key.startswith("__") and (_is_state(value) or isinstance(value, _LRU)):
                self.found[f"{kind.__name__}.{key}"] = Outside(value, kind, key)
            function = _function_of(value)
            if function is not None and (key in self._used or key in _BY_SIGN):
                self.left.append(function)
            elif function is not None:
                self._unused.setdefault(key, []).append(function)

    def add_function(self, function: types.FunctionType) -> None:
        """What the code of a function names outside it, and its own defaults."""
        if not self._is_new(function):
            return
        around = function.__globals__
        names = set(_names(function.__code__))
        for name in names:
            self.use(name)
        for name in sorted(names & around.keys()):
            value = around[name]
            self._add_variable(name, around, function.__module__)
            if isinstance(value, types.ModuleType) and _of_others(value):
                for part in sorted(names & vars(value).keys()):
                    self._add_variable(part, vars(value), value.__name__)
        own = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in own:
            if _is_filled(cell) and _is_state(cell.cell_contents):
                place = Outside(cell.cell_contents, cell, "cell_contents")
                self.found[f"{name} around {function.__qualname__}"] = place
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        kept = [value for value in defaults if isinstance(value, _STATE) and not _is_number(value)]
        if kept:
            self.found[f"a default of {function.__qualname__}"] = Outside(kept, None, "")

    def _add_variable(self, name: str, around: dict, module: str) -> None:
        """A variable of a module."""
        value = around[name]
        if _is_state(value) or isinstance(value, _LRU):
            self.found[f"{name} of {module}"] = Outside(value, around, name)
            self.add_class(type(value))
        if isinstance(value, type) and not issubclass(value, nn.Module):
            self.add_class(value)
        if (function := _function_of(value)) is not None:
            self.left.append(function)

    def _is_new(self, thing: object) -> bool:
        if id(thing) in self._seen or not _of_others(thing):
            return False
        self._seen.add(id(thing))
        return True


# Methods that code uses without their names
_BY_SIGN = (
    "__call__", "__getitem__", "__setitem__", "__contains__", "__getattr__", "__iter__", "__enter__", "__len__",
)  # fmt: skip


_STATE = (
    int, float, complex, Tensor, np.ndarray, dict, list, set, collections.deque, types.NoneType,
)  # fmt: skip


def _is_state(value: object) -> bool:
    """Whether it is a number, a tensor, a container or a plain object of somebody's own class."""
    if isinstance(value, _STATE):
        return True
    code = type | types.ModuleType | types.FunctionType | types.MethodType | nn.Module | _LRU
    known = isinstance(value, code) or callable(value) or not hasattr(value, "__dict__")
    return not known and _of_others(type(value))


def _of_others(thing: object) -> bool:
    """Whether a class, a function or a module is neither torch's nor Python's nor this library's."""
    of = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", "")
    module = of or ""
    top = module.partition(".")[0]
    ours = top in ("torch", "numpy", "atslib", "atsaudit") or top in sys.stdlib_module_names
    return not ours or thing is types.SimpleNamespace or top == "__main__"


def _function_of(value: object) -> types.FunctionType | None:
    """The function behind a method, a property, or what wraps one."""
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, functools.cached_property):
        value = value.func
    elif isinstance(value, classmethod | staticmethod | types.MethodType):
        value = value.__func__
    # Of nothing else are attributes asked: some packages import more when they are.
    if isinstance(value, types.FunctionType | _LRU):
        value = inspect.unwrap(value)
    return value if isinstance(value, types.FunctionType) else None


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that code uses, with those of the functions within it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | complex | types.NoneType)


def check_outside(model: nn.Module, run: Callable[[nn.Module], object]) -> None:
    """Raise `AtsError` where a network keeps state outside itself that its gradients depend on, so
    that no copy begins where it did: a counter of a class, a table that is made once.

    What lies outside is as it was afterwards, unless a pass itself changes it.

    Args:
        run: runs a copy of the network, the same way each time, and gives its scores.
    """
    before = {place: _of_cell(each.value, {}) for place, each in outside(model).items()}
    first = run(apart(model))
    after = outside(model)
    if not after:
        return
    moving = [p for p in after if not _alike(before.get(p), after[p].value, set())]
    again = run(apart(model)) if moving else first
    wrong = moving[:1] if moving and not _close(first, again) else _reused(model, after, run)
    # What a call without gradients has kept looks like any constant, until it is made anew.
    for deleted in (False, True):
        if not wrong and any(_held(each) for each in after.values()):
            with _without_tensors(after.values(), deleted):
                run(apart(model))
                wrong = _reused(model, outside(model), run)
    if wrong:
        raise AtsError(
            f"{type(model).__name__} changes {wrong[0]}, which lies outside it and which its scores are made "
            "of, so that no two runs of it are alike; keep it in an attribute or a buffer of the layer"
        )


def _held(place: Outside) -> list[Tensor]:
    """The tensors in a value outside a network, also those that a cached function has given."""
    value = place.value  # such a function shows of its results no more than how many there are
    parts = gc.get_referents(value) if isinstance(value, _LRU) else value
    return [tensor for _, tensor in _tensors(parts, (), set())]


def _reused(
    model: nn.Module, places: dict[str, Outside], run: Callable[[nn.Module], object]
) -> list[str]:
    """Which places outside a network hold a tensor that another run has computed from parameters,
    and that the scores of the next are made of.
    """
    kept = [
        (place, tensor)
        for place, each in places.items()
        for tensor in _held(each)
        if tensor.requires_grad and not tensor.is_leaf
    ]
    if not kept:
        return []
    scores = run(apart(model))
    if not isinstance(scores, Tensor):
        return []  # what is wrong with it is said by who runs it next
    slopes = torch.autograd.grad(
        scores.sum(), [tensor for _, tensor in kept], retain_graph=True, allow_unused=True
    )
    return [place for (place, _), slope in zip(kept, slopes, strict=True) if slope is not None]


@contextlib.contextmanager
def _without_tensors(places: Iterable[Outside], deleted: bool) -> Iterator[None]:
    """While it is open, values outside a network hold no tensors: their containers lack them,
    and attributes and variables are None, or are not there where these are to be deleted.
    """
    with contextlib.ExitStack() as back:
        for value, owner, key in places:
            if isinstance(value, _LRU):
                instead = functools.lru_cache(**value.cache_parameters())(value.__wrapped__)
            elif isinstance(value, Tensor):
                instead = None
            else:
                for holder in _holders(value, set()):
                    back.callback(_restore, holder, copy.copy(_content(holder)))
                    _take_tensors(holder, deleted)
                continue
            if isinstance(owner, dict):
                back.callback(owner.__setitem__, key, value)
                owner[key] = instead
            elif owner is not None:
                back.callback(setattr, owner, key, value)
                setattr(owner, key, instead)
                if deleted and instead is None and isinstance(owner, type):
                    delattr(owner, key)
        yield


def _holders(value: object, seen: set[int]) -> Iterator[object]:
    """The containers and plain objects, at any depth, that hold a tensor themselves."""
    if isinstance(value, Tensor | nn.Module) or id(value) in seen:
        return
    seen.add(id(value))
    parts = [part for _, part in _parts(value)]
    if any(isinstance(part, Tensor) for part in parts) and not isinstance(value, _FIXED):
        yield value
    for part in parts:
        yield from _holders(part, seen)


_FIXED = (tuple, frozenset, functools.partial)  # they stay what they were made of


def _content(holder: object) -> object:
    """What of a container can be copied and put back."""
    if isinstance(holder, types.CellType):
        return holder.cell_contents
    return holder if isinstance(holder, _STATE) else holder.__dict__


def _take_tensors(holder: object, deleted: bool) -> None:
    if isinstance(holder, types.CellType):
        holder.cell_contents = None
    elif isinstance(holder, list | collections.deque | set):
        holder.clear()
    elif isinstance(holder, dict) or deleted:
        content = _content(holder)
        for key in [key for key, part in content.items() if isinstance(part, Tensor)]:
            del content[key]
    else:
        content = holder.__dict__
        content |= {key: None for key, part in content.items() if isinstance(part, Tensor)}


def _restore(holder: object, content: object) -> None:
    if isinstance(holder, types.CellType):
        holder.cell_contents = content
        return
    own = _content(holder)
    own.clear()
    if isinstance(own, list | collections.deque):
        own.extend(content)
    else:
        own.update(content)


def _close(a: object, b: object) -> bool:
    """Whether two results are the same but for rounding, which not every device repeats."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.shape != b.shape:
        return type(a) is type(b) and not isinstance(a, Tensor)
    return torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)


def kept_tensors(model: nn.Module) -> dict[Place, Tensor]:
    """Tensors that layers hold and that are neither parameters nor saved buffers, by place.

    Those in dicts, lists and plain objects of a layer, and in variables of its functions and hooks,
    are among them.
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
        for key in layer._non_persistent_buffers_set:
            if isinstance(value := layer._buffers.get(key), Tensor):
                found[name, ("_buffers", key)] = value
    return found


# Attributes of every module that torch manages, hooks apart
_TORCHS = frozenset(vars(nn.Module())) - {"_forward_hooks", "_forward_pre_hooks"}


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
        return [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
    if isinstance(value, types.MethodType):
        return [("__self__", value.__self__)]
    if isinstance(value, _LRU):
        return [("__wrapped__", value.__wrapped__)]
    if isinstance(value, types.CellType):
        return [("cell_contents", value.cell_contents)] if _is_filled(value) else []
    if isinstance(value, types.FunctionType):
        # Those of torch, those that it compiled and hooks of this library are no part of a network.
        own = not (value.__module__ or "").startswith(("torch.", "atslib.", "atsaudit."))
        own = own and not hasattr(value, "_torchdynamo_orig_callable")
        return [("__closure__", value.__closure__)] if own and value.__closure__ else []
    plain = isinstance(value, type | types.ModuleType | torch.jit.ScriptModule)
    return [] if plain else list(getattr(value, "__dict__", {}).items())


def _emptied(owner: object, path: tuple[object, ...]) -> None:
    """Take what is kept at a place out of its container; an attribute is None then."""
    *way, last = path
    for key in way:
        if owner is None:
            return
        owner = _part(owner, key)
    if way and way[-1] == "_buffers":
        owner[last] = None
    elif isinstance(owner, dict):
        owner.pop(last, None)
    elif isinstance(owner, list | collections.deque):
        owner.clear()
    elif isinstance(owner, types.CellType):
        owner.cell_contents = None
    elif owner is not None and not isinstance(owner, tuple):
        if hasattr(type(owner), last):  # a default of the class, or a `cached_property`
            owner.__dict__.pop(last, None)
        else:
            owner.__dict__[last] = None


def _part(owner: object, key: object) -> object:
    if isinstance(owner, dict):
        return owner.get(key)
    if isinstance(owner, list | tuple | collections.deque):
        return owner[key] if key < len(owner) else None
    return dict(_parts(owner)).get(key) if owner is not None else None


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
