"""Functions and classes of a notebook: known by their source, which goes into the key of every result
that is made with them.

A changed line, a changed constant or a changed helper makes a new result, which `joblib.Memory` would
not see.
"""

import ast
import dataclasses
import dis
import inspect
import linecache
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from atsbook.kept import Kept
from atsbook.networks import ModelRequest, dataset, trained
from atsbook.store import Store
from atslib.attacks import Reconstruction, reconstruct
from atslib.checkpoints import fingerprint
from atslib.clients.observe import Observed
from atslib.errors import AtsError, check_kind
from atslib.models import Normalize, normalization
from atslib.rng import rng


class NotebookFunction(str):
    """A function or class of a notebook, known by its source and by what that source refers to.

    It is that text, which goes into the key of every result that is made with it, so that a changed
    line, a changed constant or a changed helper makes a new result.

    Attributes:
        call: the function or class.
        name: its name in the notebook.
    """

    call: Callable
    name: str

    def __new__(cls, call: Callable, text: str | None = None) -> "NotebookFunction":
        """`text` is given where the source cannot be read, as in a worker."""
        made = super().__new__(cls, "\n".join(_source(call, {})) if text is None else text)
        made.call = call
        made.name = call.__name__
        return made

    def __reduce__(self) -> tuple:
        """A worker has no cells to read the source from."""
        return NotebookFunction, (self.call, str(self))


def _source(call: Callable, seen: dict[int, object]) -> list[str]:
    """The source of a function or class and of all in the same notebook or file that it refers to,
    each once.
    """
    if id(call) in seen:
        return []
    seen[id(call)] = call
    texts = [_text(call)]
    functions = [call]
    if isinstance(call, type):
        bases = [base for base in call.__mro__[1:] if base.__module__ == call.__module__]
        texts += [text for base in bases for text in _source(base, seen)]
        written = {
            node.name
            for node in ast.walk(ast.parse(textwrap.dedent(texts[0])))
            if hasattr(node, "name")
        }
        functions = [
            part for part in _functions(call) if part.__name__ in written
        ]  # not what a dataclass makes
        # Attributes may have been computed from what the class's own text only names.
        plain = {name: value for name, value in vars(call).items() if not name.startswith("__")}
        texts += [
            f"{name} = {value!r}"
            for name, value in plain.items()
            if isinstance(value, str | int | float | bool)
        ]
    for function in functions:
        for name, value in _names(function).items():
            texts += _referred(function, name, value, seen)
    return texts


def _text(call: Callable) -> str:
    """The source of a function or class.

    Raises:
        AtsError: it cannot be read.
    """
    try:
        return inspect.getsource(call).rstrip()
    except (OSError, TypeError) as error:
        # Of a class in a notebook Python does not know the file, but its methods know their cell.
        for function in _functions(call) if isinstance(call, type) else ():
            cell = "".join(linecache.getlines(function.__code__.co_filename))
            for node in ast.walk(ast.parse(cell)):
                if isinstance(node, ast.ClassDef) and node.name == call.__name__:
                    return ast.get_source_segment(cell, node)
        name = getattr(call, "__name__", repr(call))
        raise AtsError(
            f"{name} is keyed by its source, which cannot be read ({error}): write it in a cell"
        ) from None


def _functions(kind: type) -> list[types.FunctionType]:
    """The functions that are written in a class."""
    parts = [part.fget if isinstance(part, property) else part for part in vars(kind).values()]
    parts = [getattr(part, "__func__", part) for part in parts]  # of class methods and static ones
    return [
        part
        for part in parts
        if isinstance(part, types.FunctionType) and part.__module__ == kind.__module__
    ]


def _names(function: types.FunctionType) -> dict[str, object]:
    """What a function and the functions inside it refer to outside themselves, in the order of
    their names.
    """
    wanted = set()
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        reads = (
            "LOAD_GLOBAL",
            "LOAD_NAME",
        )  # and not attributes, which may have the name of a global by chance
        wanted |= {step.argval for step in dis.get_instructions(code) if step.opname in reads}
        codes += [part for part in code.co_consts if isinstance(part, types.CodeType)]
    found = {name: function.__globals__[name] for name in wanted if name in function.__globals__}
    found |= inspect.getclosurevars(function).nonlocals
    found |= {f"default {i}": value for i, value in enumerate(function.__defaults__ or ())}
    found |= {f"default {name}": value for name, value in (function.__kwdefaults__ or {}).items()}
    return dict(sorted(found.items()))


def _referred(function: Callable, name: str, value: object, seen: dict[int, object]) -> list[str]:
    """What a key must hold of one name that a function refers to."""
    if isinstance(value, types.ModuleType) or name == "__class__":
        return []
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        own = getattr(value, "__module__", None) == function.__module__
        return (
            _source(value, seen) if own else [f"{name} = {value.__module__}.{value.__qualname__}"]
        )
    if value is None or isinstance(value, str | int | float | bool):
        return [f"{name} = {value!r}"]
    held = isinstance(value, Tensor | nn.Module | list | tuple | dict) or dataclasses.is_dataclass(
        value
    )
    if held and not has_no_text(value):
        return [f"{name} = {fingerprint(value)}"]
    raise AtsError(
        f"{function.__name__} uses {name}, a {type(value).__name__}, which no key can hold: make it inside the "
        "function, or give it as a number, a text, a tensor or a frozen dataclass"
    )


def has_no_text(value: object) -> bool:
    """Whether some part of a value has no text of its own but its address in memory."""
    if isinstance(value, dict):
        return any(map(has_no_text, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_no_text, value))
    if dataclasses.is_dataclass(value):
        return any(has_no_text(getattr(value, field.name)) for field in dataclasses.fields(value))
    return not (value is None or isinstance(value, str | int | float | bool | Tensor | nn.Module))


@dataclasses.dataclass(frozen=True, kw_only=True)
class NotebookNetwork(ModelRequest):
    """A network that a function or class of a notebook builds; `model` is its name."""

    build: NotebookFunction

    def untrained(self) -> nn.Module:
        """The network with weights from the request's seed, in eval mode, a `Normalize` layer in
        front.

        Raises:
            AtsError: what is written does not take (classes, channels, side of the images), or
                makes no network.
        """
        images = dataset(self.dataset, "test")
        _, channels, side, _ = images.pixels.shape
        seed = torch.randint(1 << 62, (1,), generator=rng(self.seed, "weights", self.model))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(
                int(seed)
            )  # reseeds no accelerator, as torch.manual_seed would
            try:
                made = self.build.call(images.num_classes, channels, side)
            except TypeError as error:
                given = f"{self.model}({images.num_classes}, {channels}, {side})"
                raise AtsError(
                    f"{given}, classes, channels and side of the images: {error}"
                ) from None
        check_kind(f"{self.model} makes", made, nn.Module, "a torch.nn.Module")
        if not isinstance(next(iter(made.children()), None), Normalize):
            made = nn.Sequential(Normalize(*normalization(self.norm or self.dataset)), made)
        return made.eval()


@dataclasses.dataclass(frozen=True)
class WrittenAttack:
    """An attack that a notebook defines: a function `f(seen, *, rng)`, or an object with such a
    method `run`. The name of this class is a part of keys.
    """

    written: NotebookFunction
    fields: tuple[tuple[str, object], ...] = ()

    @property
    def title(self) -> str:
        """The name in the notebook."""
        return self.written.name

    def run(self, seen: Observed, *, rng: torch.Generator, **options: object) -> Reconstruction:
        """Run what was written, with those options of `reconstruct` that it names."""
        call = self.written.call
        attack = call(**dict(self.fields)) if isinstance(call, type) else call
        return reconstruct(seen, attack, rng=rng, **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallRequest(Kept):
    """What a function of a notebook measures of a network; see `Study.call`."""

    kind: ClassVar[str] = "call"

    model: ModelRequest
    function: NotebookFunction
    arguments: tuple[tuple[str, object], ...] = ()

    @property
    def title(self) -> str:
        """The function and the network."""
        return f"{self.function.name}, {self.model.title}"

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Call the function."""
        net = trained(self.model, store, device)[0].eval()
        return self.function.call(net, **dict(self.arguments))
