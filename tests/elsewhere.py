"""A device that is not there: its tensors have their numbers on the CPU and say that they lie elsewhere,
so that whatever meets a tensor that was left behind fails here as it would on a GPU.
"""

import contextlib

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

# Of the kinds that torch knows one that no build has, and for which its autograd needs no driver
PLACE = torch.device("lazy")
aten = torch.ops.aten
COPIES = (aten._to_copy.default, aten.copy_.default)
INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default)
MADE_OF_LISTS = (torch.tensor, torch.as_tensor)


class LeftBehind(AssertionError):
    """An operation on tensors of both places."""


class There(torch.Tensor):
    """A tensor elsewhere, with its numbers in `here`."""

    @staticmethod
    def __new__(cls, here):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            here.shape,
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=PLACE,
        )

    def __init__(self, here):
        self.here = here

    def __repr__(self, **options):
        return f"There({self.here})"

    def tolist(self):
        return self.here.tolist()

    def numpy(self, **options):
        raise TypeError("can't convert a tensor elsewhere to numpy; use .cpu() first")

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        return done(function, arguments, options or {})


def is_there(device):
    return device is not None and torch.device(device).type == PLACE.type


def done(function, arguments, options):
    """The operation on the numbers; its results lie where its arguments lie, or where it puts them.

    Raises:
        LeftBehind: arguments of both places, but single numbers, and indices on the CPU, which torch
            takes.
    """
    tensors = [x for x in tree_leaves((arguments, options)) if isinstance(x, torch.Tensor)]
    there = [x for x in tensors if isinstance(x, There)]
    together = tensors
    if function in INDEXING and isinstance(arguments[0], There):
        together = [arguments[0], *arguments[2:3]]
    if there and function not in COPIES:
        for tensor in together:
            if not isinstance(tensor, There) and tensor.ndim:
                shapes = [tuple(each.shape) for each in tensors]
                raise LeftBehind(f"{function} of tensors in both places, of shapes {shapes}")
    result = function(
        *tree_map(_here, arguments),
        **{name: _on_the_cpu(name, value) for name, value in options.items()},
    )
    goes = bool(there)
    if function is aten._to_copy.default:
        goes = is_there(options.get("device") or tensors[0].device)
    elif function is aten.copy_.default:
        goes = isinstance(arguments[0], There)
    elif not tensors:
        goes = is_there(options.get("device"))
    if not goes:
        return result
    known = {id(each.here): each for each in there}  # what is changed in place stays itself

    def placed(value):
        if not isinstance(value, torch.Tensor):
            return value
        return known[id(value)] if id(value) in known else There(value)

    return tree_map(placed, result)


def _here(value):
    return value.here if isinstance(value, There) else value


def _on_the_cpu(name, value):
    return "cpu" if name == "device" and is_there(value) else tree_map(_here, value)


class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        return done(function, arguments, options or {})


class Called(TorchFunctionMode):
    """What torch does in C++ before it dispatches: tensors of lists, and indices that are lists."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = dict(options or {})
        if function in MADE_OF_LISTS and is_there(options.get("device")):
            device = options.pop("device")
            return function(*arguments, **options).to(device)
        if function is torch.Tensor.new_tensor and isinstance(arguments[0], There):
            like = {"dtype": arguments[0].dtype}
            return torch.tensor(*arguments[1:], **like | options).to(PLACE)
        indexed = function in (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
        if indexed and isinstance(arguments[0], There):
            index = arguments[1]
            index = tuple(map(_listed, index)) if isinstance(index, tuple) else _listed(index)
            arguments = (arguments[0], index, *arguments[2:])
        return function(*arguments, **options)


def _listed(index):
    return torch.tensor(list(index)) if isinstance(index, range | list) else index


class Autocast(torch.autocast):
    """torch knows no half precision elsewhere: that of the CPU."""

    def __init__(self, device_type, *arguments, **options):
        super().__init__("cpu" if is_there(device_type) else device_type, *arguments, **options)


@contextlib.contextmanager
def elsewhere(monkeypatch):
    """Within it there is the device `PLACE`."""
    with monkeypatch.context() as patch:
        patch.setattr(torch, "autocast", Autocast)
        with Called(), Dispatched():
            yield


def moved(model, device):
    """The network on a device, as `model.to` would move it."""
    for part in model.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                there = parameter.detach().to(device)
                part._parameters[name] = nn.Parameter(there, parameter.requires_grad)
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else buffer.to(device)
    return model
