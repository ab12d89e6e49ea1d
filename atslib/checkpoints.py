"""Safetensors files with a hash of what is in them: networks, and the states of runs that can be
resumed.
"""

import dataclasses
import hashlib
import json
import warnings
from pathlib import Path
from textwrap import shorten

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from atslib.errors import AtsError, as_path
from atslib.files import write_atomically

Tensors = dict[str, Tensor]


def plain(config: object) -> object:
    """A config as JSON can hold it: dataclasses become dicts, tuples become lists, other objects
    become their text.
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, dict):
        return {str(key): plain(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [plain(value) for value in config]
    return config if isinstance(config, str | int | float | bool | None) else str(config)


def is_plain(config: object) -> bool:
    """Whether `plain` tells all that is in a config: numbers, text, truth values and what is made
    of these.
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return all(is_plain(getattr(config, field.name)) for field in dataclasses.fields(config))
    if isinstance(config, dict):
        return all(isinstance(key, str) for key in config) and all(map(is_plain, config.values()))
    if isinstance(config, list | tuple):
        return all(map(is_plain, config))
    return isinstance(config, str | int | float | bool | Path | None)


def fingerprint(*parts: object) -> str:
    """A hash of values, 20 hex digits: what names images, a network or a whole run.

    Tensors and arrays count by type, shape and values, a generator by its state, a network by its
    layers and weights, and a dataclass, dict, set or sequence by all that it holds; anything else
    as `plain` shows it.
    """
    whole = hashlib.sha256()

    def add(part: object) -> None:
        if isinstance(part, Tensor):
            array = part.detach().cpu().contiguous()
            whole.update(f"{array.dtype}{tuple(array.shape)}".encode())
            whole.update(array.reshape(-1).view(torch.uint8).numpy())
        elif isinstance(part, np.ndarray) and part.dtype != object:
            whole.update(f"array {part.dtype.str}{part.shape}".encode())
            whole.update(np.ascontiguousarray(part).tobytes())
        elif isinstance(part, set | frozenset):
            add(["set", sorted(fingerprint(item) for item in part)])
        elif isinstance(part, torch.Generator):
            add(part.get_state())
        elif isinstance(part, nn.Module):
            add([str(part), dict(part.state_dict())])
        elif dataclasses.is_dataclass(part):
            add(
                [
                    type(part).__name__,
                    {f.name: getattr(part, f.name) for f in dataclasses.fields(part)},
                ]
            )
        elif isinstance(part, dict):
            add([item for pair in part.items() for item in pair])
        elif isinstance(part, list | tuple):
            whole.update(f"[{len(part)}]".encode())
            for item in part:
                add(item)
        else:
            whole.update(json.dumps(plain(part)).encode() + b"\n")

    for part in parts:
        add(part)
    return whole.hexdigest()[:20]


def write_tensors(path: Path, tensors: Tensors, facts: dict) -> None:
    """Write tensors and facts (JSON values) as one safetensors file, whole or not at all, with a
    hash of both.

    A tensor that has several names, as tied weights have, is written once.
    """
    words = json.dumps(facts)
    once = {}
    tied = {}
    for name, value in tensors.items():
        twin = next((other for other in once if _is_same(value, tensors[other])), None)
        if twin is None:
            once[name] = value.detach().cpu().contiguous()
        else:
            tied[name] = twin
    whole = sum(value.untyped_storage().nbytes() for value in once.values())
    if whole > sum(
        value.nbytes for value in once.values()
    ):  # some share memory without being the same
        once = {name: value.clone() for name, value in once.items()}
    metadata = {"facts": words, "hash": _hash(once, words, tied)} | (
        {"tied": json.dumps(tied)} if tied else {}
    )
    write_atomically(
        path,
        lambda partial: save_file(once, partial, metadata=metadata),
    )


def _is_same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same numbers at the same place in memory."""
    alike = (
        a.device == b.device
        and a.dtype == b.dtype
        and a.shape == b.shape
        and a.stride() == b.stride()
    )
    return alike and a.numel() > 0 and a.data_ptr() == b.data_ptr()


def read_tensors(path: Path) -> tuple[Tensors, dict, bool]:
    """The tensors and facts in a file, and whether it carries a hash, as files of `write_tensors`
    do.

    Raises:
        AtsError: the file is not there, is no safetensors file, or its bytes have changed since.
    """
    if not path.is_file():
        raise AtsError(f"{path} {'is a folder, not a file' if path.is_dir() else 'does not exist'}")
    try:
        with safe_open(path, "pt") as stored:
            metadata = stored.metadata() or {}
        words = metadata.get("facts", "{}")
        tensors = load_file(path)
        facts = json.loads(words)
        tied = json.loads(metadata.get("tied", "{}"))
    except Exception as error:
        raise AtsError(
            f"{path} cannot be read as safetensors: {shorten(str(error), 200)}"
        ) from None
    if not isinstance(facts, dict) or not isinstance(tied, dict):
        raise AtsError(f"{path} holds facts that are a {type(facts).__name__}; they must be named")
    whole = _hash(tensors, words, tied)
    if metadata.get("hash", whole) != whole or not all(twin in tensors for twin in tied.values()):
        raise AtsError(f"{path} is damaged: its bytes do not match their hash")
    return tensors | {name: tensors[twin] for name, twin in tied.items()}, facts, "hash" in metadata


def _hash(tensors: Tensors, words: str, tied: dict[str, str]) -> str:
    return fingerprint(
        words, dict(sorted(tensors.items())), *([dict(sorted(tied.items()))] if tied else [])
    )


def state_file(path: Path | str | None) -> Path | None:
    """Where a run is to keep its state, as a user gives it; the folder is made. None stays None.

    Raises:
        AtsError: no path, or its folder cannot be made.
    """
    path = as_path("checkpoint", path, optional=True)
    if path is not None:
        if not path.name:
            raise AtsError(f"checkpoint {path} is a folder; a state needs a file of its own")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AtsError(f"{path.parent} cannot be written: {error.strerror}") from None
    return path


def save_state(path: Path, run: str, tensors: Tensors, **facts: object) -> None:
    """Keep the state of a run, in a folder that is there.

    Args:
        run: names it: the `fingerprint` of all that decides its result.
    Raises:
        AtsError: it cannot be written.
    """
    write_tensors(path, tensors, {"run": run, **facts})


def load_state(path: Path, run: str) -> tuple[Tensors, dict] | None:
    """The state that `save_state` kept of this very run, else None.

    A state that cannot be read, or is of another run, is set aside with a warning.
    """
    if not path.exists():
        return None
    if path.is_dir():
        raise AtsError(f"{path} is a folder; a state needs a file of its own")
    try:
        tensors, facts, _ = read_tensors(path)
        if facts.get("run") == run:
            return tensors, facts
        why = "it is the state of another run: other data, network, settings or seed"
    except AtsError as error:
        why = str(error)
    aside = path.with_name(f"{path.name}.aside")
    path.replace(aside)
    warnings.warn(
        f"{path.name} is not resumed ({why}); it is now {aside.name}, and the run starts anew",
        stacklevel=3,
    )
    return None
