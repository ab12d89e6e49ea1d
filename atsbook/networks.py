"""The networks of the pages: what decides one, its training, and the stages it leaves on its way."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from atsbook.kept import Kept
from atsbook.store import Artifact, Store, whole_again
from atslib.clients.training import TrainConfig, evaluate, fit
from atslib.data.load import Images, load
from atslib.errors import AtsError, NotKept
from atslib.models import PADDINGS, build_model
from atslib.rng import rng

STAGES = (1, 3, 10, 30, 100, 300, 1_000, 3_000)  # steps of a training at which its network is kept
CURVE_IMAGES = 1_000  # test images behind the accuracy after each epoch
LARGE = 8_000_000  # bytes of weights above which a trained network ends rounded to 16 bits


@functools.lru_cache(maxsize=4)
def dataset(name: str, split: str) -> Images:
    """`load`, once a process."""
    return load(name, split)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelRequest(Kept):
    """What decides a trained network; `train=None` is the untrained one, of which nothing is kept.

    A network with a `step` is one on its way: the same training, looked at before its end.

    Its tensors: `model.…`, the weights; `accuracy` () in percent of the test images; at its end also
    `history` (epochs, 4), loss, lr, seconds, and percent correct of the first `CURVE_IMAGES` test
    images, and `images` (), how many it learned from.
    """

    kind: ClassVar[str] = "model"

    dataset: str
    model: str
    fraction: float
    train: TrainConfig | None
    seed: int
    norm: str = ""  # another data set's constants in the first layer
    step: int = 0  # as it was after so many steps; 0: at the end

    @property
    def is_kept(self) -> bool:
        """Whether it is trained: an untrained network is made anew from its seed."""
        return self.train is not None

    @property
    def title(self) -> str:
        """Network, data and policy."""
        kind = f"policy {self.train.policy or 'none'}" if self.train else "untrained"
        if self.train and self.train.defense:
            kind += f", {self.train.defense}"
        norm = f", normalized as {self.norm}" if self.norm else ""
        return f"{self.model} on {self.dataset}, {kind}{norm}{f', step {self.step}' if self.step else ''}"

    @property
    def passes(self) -> float:
        """Forward and backward through each training image, forward through each test image."""
        if not self.train:
            return 0
        train, test = (len(dataset(self.dataset, split)) for split in ("train", "test"))
        seen = (
            self.step * self.train.batch if self.step else self.train.epochs * self.fraction * train
        )
        return 3 * seen + test

    def untrained(self) -> nn.Module:
        """The network before its training; all policies and paddings of one seed share their
        initial weights.
        """
        images = dataset(self.dataset, "test")
        padding = next((f"-{name}" for name in PADDINGS if self.model.endswith(name)), "")
        return build_model(
            self.model,
            images.num_classes,
            images.pixels.shape[1],
            norm=self.norm or self.dataset,
            image_size=images.pixels.shape[2],
            rng=rng(self.seed, "weights", self.model.removesuffix(padding)),
        )

    def compute(self, store: Store, device: torch.device, state: Path) -> dict[str, Tensor]:
        """Train it."""
        return fitted(self, store, device, state)


def network(request: ModelRequest) -> nn.Module:
    """The untrained network of a request."""
    return request.untrained()


def trained(
    request: ModelRequest, store: Store, device: torch.device
) -> tuple[nn.Module, Artifact | None]:
    """The request's network on `device`, in eval mode if it is a trained one, with its result."""
    if not request.is_kept:
        return network(request).to(device), None
    artifact = request.make(store, device)
    return loaded(request, artifact).to(device), artifact


def train(
    request: ModelRequest,
    store: Store,
    device: torch.device,
    *,
    on_batch: Callable[[], None] | None = None,
    stages: Sequence[int] = (),
) -> Artifact:
    """`make`, watched on its way: the options are those of `fitted`."""
    return store.get(
        request.kind,
        request,
        lambda state: fitted(request, store, device, state, on_batch=on_batch, stages=stages),
        label=request.title,
    )


def loaded(request: ModelRequest, artifact: Artifact) -> nn.Module:
    """The trained network of these weights, in eval mode."""
    weights = {
        name.removeprefix("model."): value
        for name, value in artifact.tensors.items()
        if name.startswith("model.")
    }
    if not weights:
        return WeightsNotKept(request.title)
    model = network(request)
    model.load_state_dict(weights)
    return model.eval()


def fitted(
    request: ModelRequest,
    store: Store,
    device: torch.device,
    state: Path,
    *,
    on_batch: Callable[[], None] | None = None,
    stages: Sequence[int] = (),
) -> dict[str, Tensor]:
    """Train the request's network, from the saved `state` of an earlier call if there is one: its
    tensors. A large network ends rounded to 16 bits, in which it is kept.

    Args:
        on_batch: called before each batch. What it raises ends the training, which another call
            takes up at the last whole epoch.
        stages: steps at which the network is kept on its way to the end. One that ends at a step
            leaves those of `STAGES` before it.
    """
    model = network(request).to(device)
    on_the_way = STAGES if request.step else stages
    if on_batch:
        # A hook is before tests, too, whose batches are not those of the training.
        model.register_forward_pre_hook(lambda net, batch: on_batch() if net.training else None)
    train = dataset(request.dataset, "train").subset(
        request.fraction, rng=rng(request.seed, "subset")
    )
    test = dataset(request.dataset, "test")
    few = test[:CURVE_IMAGES]
    try:
        done = fit(
            model,
            train,
            request.train,
            rng=rng(request.seed, "train", request.train.policy),
            test=few,
            checkpoint=state,
            on_saved=store.check_time,
            on_step=lambda step: _pass(step, request, model, store, on_the_way),
            progress=store.progress,
        )
    except _Reached:
        return _weights(model) | _facts(request, model)
    if request.step:
        raise AtsError(
            f"ModelRequest.step={request.step}: the training of {request.title} ends before that step"
        )
    columns = [
        [e["loss"], e["lr"], e["seconds"], e.get("accuracy", math.nan)] for e in done.history
    ]
    known = done.history[-1].get("accuracy") if len(few) == len(test) else None
    weights = _weights(model)
    if sum(value.nbytes for value in weights.values()) > LARGE:
        # What is attacked is what ships: the network itself is rounded, and then its accuracy told.
        weights = {
            name: value.half() if value.is_floating_point() else value
            for name, value in weights.items()
        }
        model.load_state_dict({name.removeprefix("model."): v for name, v in weights.items()})
        known = None
    facts = {
        "history": torch.tensor(columns),
        "accuracy": torch.tensor(evaluate(model, test) if known is None else known),
        "images": torch.tensor(len(train)),
    }
    return weights | facts


class _Reached(Exception):
    """The step that a training was to end at."""


def _pass(
    step: int, request: ModelRequest, model: nn.Module, store: Store, stages: Sequence[int]
) -> None:
    """After a step of the request's training: keep the network at one of `stages`, end the training at
    the request's own.

    Raises:
        _Reached: it is at the request's own step.
    """
    if step == request.step:
        raise _Reached
    reached = dataclasses.replace(request, step=step)
    if step in stages and not store.has("model", reached):
        store.get(
            "model",
            reached,
            lambda state: _weights(model) | _facts(request, model),
            label=reached.title,
        )
        model.train()


def _facts(request: ModelRequest, model: nn.Module) -> dict[str, Tensor]:
    return {"accuracy": torch.tensor(evaluate(model, dataset(request.dataset, "test")))}


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {f"model.{name}": value for name, value in model.state_dict().items()}


class WeightsNotKept(nn.Module):
    """A network whose weights the archive of evidence leaves out: its accuracy is known, but it
    cannot run.
    """

    def __init__(self, title: str):
        super().__init__()
        self.title = title

    def forward(self, images: Tensor) -> Tensor:
        raise self._refusal()

    def named_parameters(
        self, *args: object, **kwargs: object
    ) -> Iterator[tuple[str, nn.Parameter]]:
        raise self._refusal()

    def _refusal(self) -> NotKept:
        return NotKept(f"the archive keeps no weights of {self.title}; {whole_again()}")


def training_steps(name: str, train: TrainConfig, fraction: float = 1.0) -> int:
    """Steps of a whole training on this share of a data set."""
    return train.epochs * math.ceil(fraction * len(dataset(name, "train")) / train.batch)
