"""Weights as frameworks write them, under the names of the network that they are for.

A wrapper puts a word before each name: "module." (parallel training), "_orig_mod." (torch.compile),
"_module." (Opacus), "model." or "net." (Lightning). Lists of arrays have numbers for names.
"""

import re
from itertools import product

import torch
from torch import Tensor, nn

from atslib.errors import AtsError

# Parts of names that torch's own wrappers, Opacus' and DeepSpeed's put in, at any place.
WRAPPERS = {
    "module",
    "_orig_mod",
    "_module",
    "_forward_module",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
}
AVERAGED = "n_averaged"  # how many networks `AveragedModel` has averaged
NUMBER = re.compile(r"(?:arr_)?(\d+)")  # names in npz files of lists, and of lists in messages


def fitted(
    tensors: dict[str, Tensor], model: nn.Module, whose: object, *, partial: bool = False
) -> dict[str, Tensor]:
    """The tensors under the names that they have in a network's state dict.

    Names are taken as they are if they are the network's. Else words of wrappers are taken off, or
    one prefix that all names have in common on either side, where then all names fit; else the one
    prefix under which the file has the whole network beside other things. Names that are numbers
    count the state dict's tensors, or the parameters. A network of transformers' reads what it
    saved itself, which has names of earlier versions.

    Args:
        tensors: of a file or message.
        model: the network; not changed.
        whose: the file, for messages.
        partial: whether some of the network's tensors may be missing, as in what a client sends.
    Raises:
        AtsError: names or shapes of another network, two networks in one file, or whole or complex
            numbers for weights.
    """
    own = model.state_dict()
    tensors = {
        name: value
        for name, value in tensors.items()
        if name in own or name.rpartition(".")[2] != AVERAGED
    }
    if tensors and not tensors.keys() & own.keys() and all(map(NUMBER.fullmatch, tensors)):
        found = _by_position(tensors, model, own, whose)
        if not partial and (missing := [name for name in _needed(own) if name not in found]):
            raise AtsError(
                f"{whose} has the {len(found)} parameters of the network without names, and not {missing[0]!r}; give the "
                "arrays of its state_dict(), in that order"
            )
    else:
        found = {} if tensors.keys() <= own.keys() else _by_its_library(tensors, model, partial)
        found = found or _by_name(tensors, own, whose, partial)
    for name, value in found.items():
        _check(name, value, own[name], whose)
    twins = _twins(own)
    return {twin: value for name, value in found.items() for twin in twins[name]} | found


def _by_position(
    tensors: dict[str, Tensor], model: nn.Module, own: dict[str, Tensor], whose: object
) -> dict[str, Tensor]:
    """Tensors with numbers for names: those of the state dict in order, or of the parameters."""
    order = sorted(tensors, key=lambda name: int(NUMBER.fullmatch(name)[1]))
    parameters = [name for name, _ in model.named_parameters()]
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    for names in (list(own), parameters, trained):
        if len(names) == len(order):
            return dict(zip(names, (tensors[number] for number in order), strict=True))
    raise AtsError(
        f"{whose} has {len(order)} arrays without names, and the network {len(own)} ({len(parameters)} of them "
        "parameters); give the arrays of its state_dict(), in that order"
    )


def _by_name(
    tensors: dict[str, Tensor], own: dict[str, Tensor], whose: object, partial: bool
) -> dict[str, Tensor]:
    needed = {} if partial else _needed(own)
    twins = _twins(own)

    def fits(names: set[str]) -> bool:
        # What the network has twice, such as tied weights, may be there once.
        return (
            bool(names)
            and names <= own.keys()
            and all(names & twins[name] for name in needed if name not in names)
        )

    if fits(tensors.keys()):
        return dict(tensors)
    bare, plain = _unwrapped(tensors), _unwrapped(own)
    for given, taken in product(_prefixes(bare), _prefixes(plain)):
        renamed = {
            plain.get(taken + name.removeprefix(given), name): value for name, value in bare.items()
        }
        if len(renamed) == len(bare) and fits(renamed.keys()):
            return {name: tensors[key] for name, key in renamed.items()}
    whole = {}
    for prefix in {} if partial else _places(bare):
        part = {
            plain.get(name.removeprefix(prefix), name): key
            for name, key in bare.items()
            if name.startswith(prefix)
        }
        if fits(part.keys()):
            whole[prefix] = part
    if len(whole) > 1:
        raise AtsError(
            f"{whose} holds the network {len(whole)} times, under {' and '.join(map(repr, sorted(whole)))}; save the one "
            "that is meant"
        )
    for part in whole.values():
        return {name: tensors[key] for name, key in part.items()}
    if partial and tensors.keys() & own.keys():  # further arrays beside those of the network
        return {name: value for name, value in tensors.items() if name in own}
    if not tensors:
        raise AtsError(f"{whose} has no arrays")
    odd = next((name for name in tensors if name not in own), None)
    missing = next((name for name in _needed(own) if name not in tensors), None)
    if odd is None:
        raise AtsError(f"{whose} is of another network: it has no {missing!r}{_shard(whose)}")
    wanted = f"none but {next(iter(own))!r} and the like" if missing is None else repr(missing)
    raise AtsError(
        f"{whose} is of another network: it has {odd!r}, and the network {wanted}{_shard(whose)}"
    )


def _by_its_library(
    tensors: dict[str, Tensor], model: nn.Module, partial: bool
) -> dict[str, Tensor]:
    """What a network of transformers' makes of tensors of a file of `save_pretrained`; {} where it
    is none, or it is one of another network.
    """
    reader = getattr(type(model), "from_pretrained", None)
    if reader is None or not hasattr(model, "config"):
        return {}
    try:
        with torch.random.fork_rng(devices=[]):
            read, told = reader(
                None, config=model.config, state_dict=dict(tensors), output_loading_info=True
            )
    except Exception:  # another library's, or a file of another network
        return {}
    drawn = told.pop("missing_keys", ())
    if any(told.values()) or (drawn and not partial):
        return {}
    return {name: value for name, value in read.state_dict().items() if name not in drawn}


def _shard(whose: object) -> str:
    """A hint where a file is one of several."""
    several = re.search(r"-\d{5}-of-\d{5}\.", str(whose))
    return "; it is one file of several: give the .index.json beside it" if several else ""


def _needed(own: dict[str, Tensor]) -> dict[str, None]:
    """Names without which a state dict is of another network: batch normalization's counters may be
    missing, as of old files.
    """
    return {name: None for name in own if not _counts(name)}


def _counts(name: str) -> bool:
    return name.rpartition(".")[2] == "num_batches_tracked"


def _twins(own: dict[str, Tensor]) -> dict[str, set[str]]:
    """Of each name all under which the state dict has the very same tensor, its own among them."""
    places = {}
    for name, value in own.items():
        known = isinstance(value, Tensor) and not _is_lazy(value) and value.numel() > 0
        place = (value.data_ptr(), value.shape, value.stride()) if known else name
        places.setdefault(place, set()).add(name)
    return {name: names for names in places.values() for name in names}


def _is_lazy(value: object) -> bool:
    return isinstance(value, nn.parameter.UninitializedTensorMixin)


def _unwrapped(tensors: dict[str, Tensor]) -> dict[str, str]:
    """The name of each tensor by what is left of it without wrappers; all as they are where two
    would be the same.
    """
    bare = {
        ".".join(part for part in name.split(".") if part not in WRAPPERS): name for name in tensors
    }
    return bare if len(bare) == len(tensors) else {name: name for name in tensors}


def _prefixes(names: dict[str, str]) -> list[str]:
    """What all names begin with, whole parts, shortest first: "", "a.", "a.b."."""
    parts = [name.split(".")[:-1] for name in names]
    found = [""]
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        found.append(f"{found[-1]}{level[0]}.")
    return found


def _places(names: dict[str, str]) -> list[str]:
    """Everything that some name begins with, whole parts."""
    found = set()
    for name in names:
        parts = name.split(".")[:-1]
        found |= {".".join(parts[: level + 1]) + "." for level in range(len(parts))}
    return sorted(found)


def _check(name: str, value: Tensor, own: object, whose: object) -> None:
    """Raise `AtsError` unless an array can be what the network has under its name."""
    if not isinstance(own, Tensor) or not isinstance(value, Tensor):
        return
    kind = str(value.dtype).removeprefix("torch.")
    if value.is_meta or value.layout != torch.strided:
        how = "has no values (device meta)" if value.is_meta else f"is of layout {value.layout}"
        raise AtsError(f"{whose}: {name!r} {how}; save it as a plain dense tensor")
    weights = own.is_floating_point()
    # Floats of a byte are quantized as whole numbers are: they stand for weights beside a scale.
    odd = not value.is_floating_point() or value.element_size() < min(2, own.element_size())
    if (weights and odd) or (value.is_complex() and not own.is_complex()):
        wanted = str(own.dtype).removeprefix("torch.")
        raise AtsError(
            f"{whose}: {name!r} is {kind}, and the network's is {wanted}; whole and complex numbers, and floats of 8 bits, "
            "are no weights: give them as the floats that they stand for (quantized ones times their scale)"
        )
    if _is_lazy(own) or (own.ndim == 0 and value.shape == (1,)):
        return
    if value.shape != own.shape:
        raise AtsError(
            f"{whose} is of another network: {name!r} is of shape {tuple(value.shape)}, and the network's of "
            f"{tuple(own.shape)}"
        )


def fill(model: nn.Module, tensors: dict[str, Tensor], whose: object) -> nn.Module:
    """Put weights into a network, whatever wrapper's names they have, see `fitted`.

    Raises:
        AtsError: they are of another network, or no weights.
    """
    found = fitted(tensors, model, whose)
    own = model.state_dict()
    counters = {name: value for name, value in own.items() if name not in found and _counts(name)}
    # The mean of clients' counters is a float, of which torch would cut the fraction off.
    found = {name: value.round() if _counts(name) else value for name, value in found.items()}
    try:
        model.load_state_dict(counters | found)
    except RuntimeError as error:
        lines = str(error).splitlines()
        fault = " ".join((lines[1] if len(lines) > 1 else lines[0]).split())[:200]
        raise AtsError(f"{whose} is of another network: {fault}") from None
    return model
