"""Training as the authors do it, with policies and defenses applied on the device."""

import contextlib
import dataclasses
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from atslib.checkpoints import (
    fingerprint,
    load_state,
    read_tensors,
    save_state,
    state_file,
    write_tensors,
)
from atslib.clients.defenses.defense import AnyDefense, Defense, acts, share, wrapped
from atslib.clients.prepare import to_images, transform
from atslib.data.images import check_data
from atslib.data.load import Images
from atslib.errors import (
    AtsError,
    as_path,
    check_kind,
    check_most,
    check_types,
    check_whole,
    choose,
)
from atslib.gradients.inputs import (
    any_parameter,
    check_fit,
    check_labels,
    scores_of,
    trained_parameter,
)
from atslib.gradients.problems import problem_gradients
from atslib.models import (
    batch_norms,
    class_scores,
    copied,
    fast_layout,
    in_mode,
    shared_parameters,
)
from atslib.policies.policy import parse_policy
from atslib.rng import as_stream, torch_draws
from atslib.weights import fill


def _steps(epoch: float, epochs: int) -> float:
    """A tenth after each of the authors' E // 2.667, E // 1.6 and E // 1.142 whole epochs.

    All three are 0 where E is 1: there it falls within the epoch, after these parts of it. Where E
    is 2 the first is 0, and the step size begins at a tenth.
    """
    whole = epochs > 1
    return 0.1 ** sum(epoch >= (epochs // by if whole else 1 / by) for by in (2.667, 1.6, 1.142))


def _one_cycle(epoch: float, epochs: int) -> float:
    """From 1/25 up to 1 in the first fifth, along a straight line, then down to 0 along half a
    cosine.
    """
    done = epoch / epochs
    if done < 0.2:
        return 1 / 25 + (1 - 1 / 25) * done / 0.2
    return (1 + math.cos(math.pi * (done - 0.2) / 0.8)) / 2


# What the step size is multiplied by after so many epochs of all.
RATES: dict[str, Callable[[float, int], float]] = {"steps": _steps, "onecycle": _one_cycle}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run. Defaults: the authors' optimizer and schedule.

    Attributes:
        policy: applied to every training image after crop and flip; "" for none, "+" for a hybrid.
        crop_flip: random crop (padding 4, black) and horizontal flip.
        epochs, batch, lr, momentum, weight_decay: SGD with Nesterov momentum.
        schedule: how the step size changes, a key of `RATES`. "steps" is the authors': times 0.1
            after 3/8, 5/8 and 7/8 of the epochs. "onecycle" rises to `lr` in the first fifth of the
            steps and falls to 0 as a cosine (Smith and Topin 2018, arXiv:1708.07120), for short
            trainings.
        loss_factor: multiplies the cross-entropy. Both published codebases train with 0.5,
            inherited from Inverting Gradients (inversefed/data/loss.py), which no paper mentions; 1
            is the plain loss.
        defense: text of a `Defense`, such as "clip:1 | gaussian:0.01": it acts on each batch after
            the policy, inside the network, and on the batch's gradient before the optimizer (weight
            decay comes after).
        mixed_precision: forward and backward in bfloat16 autocast, weights and steps in float32.
            Twice as fast where the processor has bfloat16, slower elsewhere. Off unless the
            accuracy was shown to be the same.
    """

    policy: str = ""
    crop_flip: bool = True
    epochs: int = 60
    batch: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    loss_factor: float = 1.0
    defense: str = ""
    mixed_precision: bool = False
    schedule: str = "steps"

    def __post_init__(self) -> None:
        check_types(self)
        choose("TrainConfig.schedule", self.schedule, RATES)
        parse_policy(self.policy)
        Defense.parse(self.defense)
        for field in ("epochs", "batch", "lr", "loss_factor"):
            if not getattr(self, field) > 0:
                raise AtsError(f"TrainConfig.{field}={getattr(self, field)} must be above 0")
        for field in ("momentum", "weight_decay"):
            if not getattr(self, field) >= 0:
                raise AtsError(f"TrainConfig.{field}={getattr(self, field)} must not be negative")
        check_most(self, epochs=1_000_000)
        if self.momentum >= 1:
            raise AtsError(
                f"TrainConfig.momentum={self.momentum} must be below 1, else no step is ever forgotten"
            )


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained model (eval mode) and one dict per epoch: epoch, loss, lr, seconds, and accuracy if
    asked for.
    """

    model: nn.Module
    history: tuple[dict[str, float], ...]


def learning_rate(config: TrainConfig, epoch: float) -> float:
    """The step size after so many epochs, from 0 on; 0.5 is in the middle of the first."""
    return config.lr * RATES[config.schedule](epoch, config.epochs)


def fit(
    model: nn.Module,
    train: Images,
    config: TrainConfig,
    *,
    rng: torch.Generator | int,
    test: Images | None = None,
    defense: AnyDefense = None,
    checkpoint: Path | None = None,
    on_saved: Callable[[], None] | None = None,
    on_step: Callable[[int], None] | None = None,
    progress: bool = False,
) -> Trained:
    """Train `model` in place on the device of its parameters.

    Args:
        model: from `build_model`, or any network that starts with a `Normalize` layer.
        train: the images that it is trained on.
        config: how it is trained.
        rng: one stream, or a seed for one, for the order of the images, crops, flips and policies.
            Same stream, same weights (on a CPU, with the same number of threads).
        test: images whose accuracy, in percent, is added to the history after every epoch.
        defense: a further one after `config.defense`, in any form that `Defense.of` takes, such as
            a function. A checkpoint tells it from others by its text only, a function by its name.
        checkpoint: a file that makes the run resumable at the last finished epoch; the caller
            deletes it. One that is damaged, or of a run with other data, network, config or stream,
            is set aside with a warning, and training starts anew.
        on_saved: called when the checkpoint was written and more epochs follow; what it raises ends
            the training, which another call takes up.
        on_step: called with the number of steps so far after each of them, the network in train
            mode; what it raises ends the training.
        progress: show a bar with the remaining time.
    Returns:
        The same network in eval mode, and a dict for each epoch: epoch, loss (mean cross-entropy,
        without `loss_factor`), lr (of the last step), seconds, and accuracy where there are test
        images.
    Raises:
        AtsError: network and images that do not fit each other, or a loss that is no longer finite.
    """
    checkpoint = state_file(checkpoint)
    device = _check(model, train, config)
    if device.type == "cpu":
        model.to(
            memory_format=torch.channels_last
        )  # convolutions are a third faster; weights stay the same
    run = _Run(
        model, train.to(device), config, Defense.of([config.defense, defense]), as_stream(rng)
    )
    if checkpoint:
        run.resume(checkpoint, test)
    for epoch in tqdm(
        range(len(run.history), config.epochs), disable=not progress, unit="epoch", leave=False
    ):
        run.history.append(run.epoch(epoch, on_step))
        if test is not None:
            run.history[-1]["accuracy"] = evaluate(model, test)
        if checkpoint:
            run.save(checkpoint)
            if on_saved and epoch + 1 < config.epochs:
                on_saved()
    return Trained(model.to(memory_format=torch.contiguous_format).eval(), tuple(run.history))


def _check(model: nn.Module, images: Images, config: TrainConfig) -> torch.device:
    """Where the network is.

    Raises:
        AtsError: it has no `Normalize` layer in front, or does not take these images or tell their
            classes apart.
    """
    check_kind("fit: config", config, TrainConfig, "an atslib.TrainConfig")
    like = trained_parameter(model)
    check_data(images)
    one = to_images(images.pixels[:1].to(like.device), like.dtype)
    with torch.no_grad():
        classes = scores_of(copied(model).eval(), one).shape[1]
    check_labels(images.labels, len(images), classes)
    _check_last_batch(model, one, len(images), config.batch)
    return like.device


def _check_last_batch(model: nn.Module, one: Tensor, images: int, batch: int) -> None:
    """Raise `AtsError` where a batch of a single image is left that a layer cannot normalize."""
    if images % batch != 1 and min(images, batch) > 1:
        return
    probe = in_mode(model, "train")
    for name, layer in batch_norms(probe).items():
        seen = []
        hook = layer.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0]))
        with torch.no_grad(), contextlib.suppress(AtsError, RuntimeError, ValueError):
            scores_of(probe, one)
        hook.remove()
        if seen and seen[0].numel() == seen[0].shape[1]:
            raise AtsError(
                f"{images} images in batches of {batch} leave one of a single image, which layer {name!r} "
                f"({type(layer).__name__}) cannot normalize; choose another TrainConfig.batch or number of images"
            )


class _Run:
    """A training on its way: what it trains and with what, and in `history` what is behind it."""

    def __init__(
        self,
        model: nn.Module,
        images: Images,
        config: TrainConfig,
        defense: Defense,
        rng: torch.Generator,
    ):
        self.model = model
        self.images = images
        self.config = config
        self.defense = defense
        self.rng = rng
        self.policy = parse_policy(config.policy)
        self.history = []
        how = {"nesterov": config.momentum > 0, "weight_decay": config.weight_decay}
        trained = shared_parameters(model).values()
        self.optimizer = torch.optim.SGD(trained, lr=config.lr, momentum=config.momentum, **how)
        # What the network draws by itself, as dropout does: of the same stream, without taking from
        # it.
        beside = torch.Generator(rng.device)
        beside.set_state(rng.get_state())
        self.draws = int(torch.randint(1 << 62, (1,), generator=beside, device=rng.device))

    def epoch(self, number: int, on_step: Callable[[int], None] | None) -> dict[str, float]:
        """One pass over the images; its facts, the loss being the mean cross-entropy without the
        factor.
        """
        started = time.monotonic()
        config = self.config
        model = wrapped(self.defense, self.model, self.rng).train()
        device = self.images.pixels.device
        order = torch.randperm(len(self.images), generator=self.rng, device=self.rng.device).to(
            device
        )
        batches = order.split(config.batch)
        total = torch.zeros((), device=device)
        first = number * len(batches)
        with torch_draws((self.draws + number) % (1 << 62), device):
            for done, rows in enumerate(batches, first):
                rate = learning_rate(config, done / len(batches))
                self.optimizer.param_groups[0]["lr"] = rate
                total += self.step(model, rows) * len(rows)
                if on_step:
                    on_step(done + 1)
        loss = float(total) / len(self.images)
        if not math.isfinite(loss):
            raise AtsError(
                f"training diverged in epoch {number}: loss {loss}; lower TrainConfig.lr={config.lr}"
            )
        return {"epoch": number, "loss": loss, "lr": rate, "seconds": time.monotonic() - started}

    def step(self, model: nn.Module, rows: Tensor) -> Tensor:
        """Train `model`, the network or a defense's wrapper of it, on one batch; its loss before."""
        config = self.config
        rng = self.rng
        batch = transform(
            self.images.pixels[rows], self.policy, rng=rng, crop_flip=config.crop_flip
        )
        like = next(self.model.parameters())
        batch = fast_layout(to_images(self.defense.before(batch, rng=rng), like.dtype))
        targets = self.images.labels[rows]
        if acts(self.defense, "examples"):
            known = F.one_hot(targets, self.images.num_classes).to(batch)
            batch, targets = self.defense.examples(batch, known, rng=rng)
        self.optimizer.zero_grad()
        with torch.autocast(batch.device.type, torch.bfloat16, enabled=config.mixed_precision):
            loss = F.cross_entropy(class_scores(model, batch), targets)
        count = self._gradients(model, batch, targets, config.loss_factor * loss)
        if self.defense.parts:
            parameters = {name: p for name, p in model.named_parameters() if p.grad is not None}
            gradients = {name: p.grad[None] for name, p in parameters.items()}
            shared = share(self.defense, gradients, model=model, rng=rng, images=batch[None])
            for name, gradient in shared.items():
                parameters[name].grad = gradient[0] / count
        self.optimizer.step()
        return loss.detach()

    def _gradients(self, model: nn.Module, batch: Tensor, targets: Tensor, loss: Tensor) -> int:
        """Fill in the gradients of the batch; by what they are divided before the step, once they
        are defended.

        Where the defense acts on `each` image's gradient, they are the sum of what it makes of
        these.
        """
        if not acts(self.defense, "each"):
            loss.backward()
            return 1
        alone = problem_gradients(model, batch[:, None], targets[:, None], like=self.model)
        trained = shared_parameters(model)
        named = dict(zip(trained, alone, strict=True))
        for p, g in zip(trained.values(), self.defense.each(named).values(), strict=True):
            p.grad = self.config.loss_factor * g.sum(0)
        return len(batch)

    def save(self, path: Path) -> None:
        """Keep all that the next epochs depend on."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        momenta = [self.optimizer.state[p].get("momentum_buffer") for p in self.model.parameters()]
        tensors |= {f"momentum.{i}": value for i, value in enumerate(momenta) if value is not None}
        save_state(path, self.name, tensors | {"rng": self.rng.get_state()}, history=self.history)

    def resume(self, path: Path, test: Images | None) -> None:
        """Go on where this very training was left, if it was; `save` then keeps it under the same
        name.
        """
        given = (self.model, self.images, test, self.config, str(self.defense), self.rng)
        self.name = fingerprint("training 1", *given)
        if (state := load_state(path, self.name)) is None:
            return
        tensors, facts = state
        self.rng.set_state(tensors.pop("rng"))
        for i, parameter in enumerate(self.model.parameters()):
            if (momentum := tensors.pop(f"momentum.{i}", None)) is not None:
                self.optimizer.state[parameter]["momentum_buffer"] = momentum.to(parameter.device)
        self.model.load_state_dict(
            {name.removeprefix("model."): value for name, value in tensors.items()}
        )
        self.history = facts["history"]


@torch.no_grad()
def evaluate(model: nn.Module, images: Images, *, chunk: int = 500) -> float:
    """Accuracy in percent on untransformed images, in eval mode; higher is better.

    The network keeps its mode.

    Raises:
        AtsError: these are no `Images`, or not of a shape that the network takes or of more classes
            than it has.
    """
    check_whole("chunk", chunk, 1)
    like = any_parameter(model)
    modes = {layer: layer.training for layer in model.modules()}
    hits = torch.zeros((), device=like.device, dtype=torch.int64)
    try:
        check_fit(model.eval(), images)
        for pixels, labels in zip(
            images.pixels.split(chunk), images.labels.split(chunk), strict=True
        ):
            inputs = fast_layout(to_images(pixels.to(like.device), like.dtype))
            guesses = class_scores(model, inputs).argmax(1)
            hits += (guesses == labels.to(like.device)).sum()
    finally:
        for layer, mode in modes.items():
            layer.training = mode
    return 100 * int(hits) / len(images)


def save_checkpoint(path: Path, model: nn.Module, /, **facts: object) -> None:
    """Write a model's weights and facts about it (JSON values) to a safetensors file; tied weights
    are written once.
    """
    path = as_path("checkpoint", path)
    check_kind("save_checkpoint: model", model, nn.Module, "a torch.nn.Module")
    try:
        write_tensors(path, model.state_dict(), facts)
    except TypeError as error:
        raise AtsError(f"checkpoint {path}: a fact is no JSON value ({error})") from None


def load_checkpoint(path: Path, model: nn.Module) -> dict:
    """Fill `model` from a file of `save_checkpoint`; the facts stored with it.

    Raises:
        AtsError: no such file, not a safetensors file, a damaged one, or weights of another
            network.
    """
    path = as_path("checkpoint", path)
    check_kind("load_checkpoint: model", model, nn.Module, "a torch.nn.Module")
    try:
        tensors, facts, vouched = read_tensors(path)
        # torch overwrites what fits before it says what does not: first a copy is filled.
        fill(copied(model), tensors, path)
        fill(model, tensors, path)
    except AtsError as error:
        raise AtsError(f"checkpoint {error}") from None
    if not vouched:
        warnings.warn(
            f"checkpoint {path} carries no hash, so damage to it would not be noticed", stacklevel=2
        )
    return facts
