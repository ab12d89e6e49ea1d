"""Attacks of a reader's own: a thread beside the kernel, requests in, frames out.

Knows nothing of Jupyter.
"""

import dataclasses
import io
import threading
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from atsbook.figures.sheets import signed, spoken
from atsbook.networks import ModelUnit, dataset, train, trained
from atsbook.runs.settings import Settings, model_unit
from atsbook.runs.tables import policy_image
from atsbook.store import Store
from atslib.attacks import ATTACKS, GradientMatching, reconstruct
from atslib.clients.observe import observe
from atslib.clients.prepare import to_images
from atslib.clients.training import TrainConfig
from atslib.data.folder import brightest_byte, few_bits, of_depth, upper_bytes, upright, white_of
from atslib.errors import AtsError, choose
from atslib.gradients.cpu import keep_memory, keep_to_one_core
from atslib.measures.metrics import psnr
from atslib.models import device_of
from atslib.policies.policy import OPS, Policy
from atslib.rng import rng

UPLOAD_BYTES = 10_000_000
UPLOAD_PIXELS = 50_000_000
STEPS = 2000  # at most: every step is looked at, so that Stop works at once
INTERVAL = 1 / 15  # seconds between frames that are sent
UNTRAINED = (
    "lenet",
    "convnet-16",
)  # offered beside the settings' network; small enough for two cores
# A step of L-BFGS is twenty passes, too long for Stop.
LIVE_ATTACKS = tuple(
    name
    for name, a in ATTACKS.items()
    if isinstance(a, GradientMatching) and a.optimizer != "lbfgs"
)

# (message, its pictures as uint8 (C, H, W) bytes)
Emit = Callable[[dict, list[bytes]], None]


def networks(settings: Settings, store: Store) -> dict[str, dict[str, list[ModelUnit]]]:
    """The networks that can be attacked: model → stage → units.

    Untrained ones, and what the store holds.

    Of a model's checkpoints the longest trained (share of the data × epochs) are "trained", others
    "semi-trained".
    """
    bare = model_unit(settings, train=None, fraction=1.0)
    names = dict.fromkeys((*UNTRAINED, settings.model))
    offered = {name: {"untrained": [dataclasses.replace(bare, model=name)]} for name in names}
    units = [unit for _, facts in store.entries() if (unit := _checkpoint(facts, settings, store))]
    efforts: dict[str, float] = {}
    for unit in units:
        efforts[unit.model] = max(efforts.get(unit.model, 0), _effort(unit))
    for unit in units:
        stage = "trained" if _effort(unit) == efforts[unit.model] else "semi-trained"
        offered.setdefault(unit.model, {}).setdefault(stage, []).append(unit)
    return offered


def _effort(unit: ModelUnit) -> float:
    return unit.fraction * unit.train.epochs


def _checkpoint(facts: Mapping, settings: Settings, store: Store) -> ModelUnit | None:
    """The unit of a stored network of this data set; None for anything else."""
    config = facts.get("config")
    if (
        facts.get("kind") != "model"
        or not isinstance(config, dict)
        or config.get("dataset") != settings.dataset
    ):
        return None
    try:
        unit = ModelUnit(**config | {"train": TrainConfig(**config["train"])})
    except (TypeError, KeyError, AtsError):  # of another version
        return None
    return unit if not unit.train.defense and store.has("model", unit) else None


def pick(offered: Mapping, model: str, stage: str, policy: str) -> ModelUnit:
    """The network trained with `policy` at that stage, else the one trained without a policy.

    Raises:
        AtsError: there is none.
    """
    choose("network", model, offered)
    units = {
        unit.train.policy if unit.train else "": unit for unit in offered[model].get(stage, ())
    }
    if unit := units.get(policy, units.get("")):
        return unit
    raise AtsError(
        f"no {stage} {model} for policy {policy or 'none'} in the store; there is {', '.join(offered[model])}: "
        "`python -m atsbook run claim1_privacy` trains more"
    )


def read_upload(data: bytes, size: tuple[int, int, int]) -> Tensor:
    """An image file as (1, C, H, W) uint8, its middle square resized.

    Raises:
        AtsError: too large, or no image that Pillow can read.
    """
    if len(data) > UPLOAD_BYTES:
        raise AtsError(
            f"the image file has {len(data) / 1e6:.1f} MB; at most {UPLOAD_BYTES / 1e6:.0f} MB are taken"
        )
    channels, height, width = size
    try:
        image = Image.open(io.BytesIO(data))
        if image.width * image.height > UPLOAD_PIXELS:
            raise AtsError(
                f"the image has {image.width}×{image.height} pixels; at most 50 million are taken"
            )
        if image.mode in ("I", "F"):
            raise AtsError(
                "the image has 32 bits per pixel and no known range; save it with 8 or 16"
            )
        if upper_bytes(image) and white_of(top := 256 * brightest_byte(image)) < 2**16 - 1:
            raise AtsError(f"the image {few_bits(top)}")
        image = upright(image)
        if image.mode.startswith("I;16"):  # Pillow's own conversion clips at 255
            values = np.asarray(image)
            image = Image.fromarray(of_depth(values, white_of(int(values.max()))))
        image = image.convert("RGB" if channels == 3 else "L")
        image = ImageOps.fit(image, (width, height), Image.Resampling.LANCZOS)
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, EOFError):
        raise AtsError(
            "the file is no image that can be read; take a whole PNG, JPEG, WebP, GIF or BMP"
        ) from None
    flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return flat.view(1, height, width, channels).permute(0, 3, 1, 2).contiguous()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What a reader asks for; wrong values end in an `AtsError`.

    `image` is an index of the test set; `upload`, where there is one, the bytes of an image file
    instead.
    """

    policy: str = ""
    image: int = 0
    upload: bytes = b""
    network: str = "lenet"
    stage: str = "untrained"
    attack: str = "adam-cosine-tv"
    steps: int = 300

    def __post_init__(self) -> None:
        Policy.parse(self.policy)
        choose("attack", self.attack, LIVE_ATTACKS)
        if not (isinstance(self.steps, int) and 2 <= self.steps <= STEPS):
            raise AtsError(f"steps {self.steps!r} must be a whole number from 2 to {STEPS}")


class Session:
    """One attack at a time. Every message goes to `emit`, from the attack's thread.

    Messages: `started` (original and target), `frame` (the iterate; at most 15 a second), `ended`,
    and `fault` with one sentence. After `ended` or `fault` the next run may come, unless it says
    that it is `busy`. Before `started` there is `training`, where the network's file is gone or
    damaged.
    """

    def __init__(self, settings: Settings, store: Store, emit: Emit):
        self.settings = settings
        self.store = store
        self.emit = emit
        self._stop = threading.Event()
        self._busy = threading.Lock()
        self._thread: threading.Thread | None = None
        keep_memory()  # a fifth more steps a second
        policy_image(
            settings.dataset, "", False
        )  # reads the training images, for which no attack need wait then
        # Looked up once: a network whose training is stopped is not in the store, and must not
        # leave the form.
        self._networks = networks(settings, store)

    def options(self) -> dict:
        """What the form offers, as JSON holds it."""
        return {
            "operations": [spoken(Policy((index,)).names()) for index in range(len(OPS))],
            "networks": {name: list(stages) for name, stages in self._networks.items()},
            "attacks": list(LIVE_ATTACKS),
            "steps": 300,
            "limit": STEPS,
            "bytes": UPLOAD_BYTES,
        }

    def run(self, **request: object) -> None:
        """Begin an attack with the fields of `Request` and return at once."""
        if not self._busy.acquire(blocking=False):
            self.emit(
                {"kind": "fault", "busy": True, "message": "An attack is running: stop it first."},
                [],
            )
            return
        self._stop.clear()
        self._thread = threading.Thread(target=self._work, args=(request,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the attack after its step, or the training before it after its batch."""
        self._stop.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether the attack has ended, after at most `timeout` seconds."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    def _work(self, request: Mapping) -> None:
        # One image keeps one core busy. A second team of OpenMP threads beside the main thread's
        # would wait asleep: 8 steps a second with two threads, 10 with one. Threads begun later
        # have one as well.
        keep_to_one_core()
        try:
            last = {"kind": "ended", "message": self._attack(Request(**request))}
        except _Stopped as why:
            last = {"kind": "ended", "message": str(why)}
        except AtsError as error:
            last = {"kind": "fault", "message": str(error)}
        except Exception as error:  # the reader sees no log, and the next run must be possible
            last = {
                "kind": "fault",
                "message": f"the attack failed: {type(error).__name__}: {error}",
            }
        self._busy.release()
        self.emit(last, [])

    @torch.enable_grad()
    def _attack(self, request: Request) -> str:
        """Attack one image; what to say at the end."""
        device = device_of(self.settings.device)
        unit = pick(self._networks, request.network, request.stage, request.policy)
        if unit.is_kept:
            train(unit, self.store, device, on_batch=_Training(self.emit, self._stop, unit))
        model, _ = trained(unit, self.store, device)
        original, label = self._image(request)
        policy = Policy.parse(request.policy)
        _, signs = policy.draw(1, rng=rng(self.settings.seed, "policy", request.policy))
        target = policy.apply_signs(original, signs)
        images = to_images(target.to(device))
        label = (
            model(to_images(original.to(device))).argmax(1) if label is None else label.to(device)
        )
        attack = dataclasses.replace(ATTACKS[request.attack], steps=request.steps, restarts=1)
        floor = float(
            psnr(policy_image(self.settings.dataset, request.policy, False), to_images(target))
        )
        words = signed(policy.ids, signs[0].tolist())
        trained_with = (
            f"{request.stage}, policy {unit.train.policy or 'none'}" if unit.train else "untrained"
        )
        started = {"kind": "started", "operations": words, "last": request.steps, "floor": floor}
        message = (
            f"{request.attack} on {request.network} ({trained_with}), label {self._name(label)}"
        )
        self.emit(started | {"message": message}, [_bytes(original), _bytes(target)])
        seen = observe(model, images, label)
        watch = _Watch(self.emit, self._stop, images, request.steps)
        stream = rng(self.settings.seed, "live")
        reconstruct(seen, attack, rng=stream, frames=request.steps + 1, on_frame=watch, chunk=1)
        ended = (
            f"Stopped after step {watch.step}"
            if self._stop.is_set()
            else f"Finished: {request.steps} steps"
        )
        return f"{ended}. {message}."

    def _image(self, request: Request) -> tuple[Tensor, Tensor | None]:
        """The image (1, C, H, W) uint8 and its label; of an upload nobody knows it."""
        images = dataset(self.settings.dataset, "test")
        if request.upload:
            return read_upload(request.upload, tuple(images.pixels.shape[1:])), None
        one = images[request.image]
        return one.pixels, one.labels

    def _name(self, label: Tensor) -> str:
        return dataset(self.settings.dataset, "test").class_names[int(label)].replace("_", " ")


class _Stopped(Exception):
    """The reader stopped a training."""


class _Training:
    """Says that a network is trained first, and ends that training on Stop."""

    def __init__(self, emit: Emit, stop: threading.Event, unit: ModelUnit):
        self.emit = emit
        self.halt = stop
        self.unit = unit
        self.said = False

    def __call__(self) -> None:
        name = self.unit.model
        if self.halt.is_set():
            raise _Stopped(
                f"Stopped in the training of {name}; another run takes it up at its last whole epoch."
            )
        if not self.said:
            self.said = True
            epochs = self.unit.train.epochs
            message = f"The stored {name} is damaged or gone: it is trained again first, {epochs} epochs …"
            self.emit({"kind": "training", "busy": True, "message": message}, [])


class _Watch:
    """Sends frames, not more than 15 a second, and tells the attack when to stop."""

    def __init__(self, emit: Emit, stop: threading.Event, target: Tensor, last: int):
        self.emit = emit
        self.halt = stop
        self.target = target
        self.last = last
        self.step = 0
        self.sent = 0.0

    def __call__(self, step: int, images: Tensor, distance: Tensor) -> bool:
        self.step = step
        now = time.monotonic()
        if step in (0, self.last) or now - self.sent >= INTERVAL:
            self.sent = now
            image = images[0].detach()
            leak = float(psnr(image, self.target))
            cost = float(distance[0])
            frame = {"kind": "frame", "step": step, "psnr": _number(leak), "cost": _number(cost)}
            self.emit(frame, [_bytes((image.clamp(0, 1) * 255).round().byte())])
        return self.halt.is_set()


def _number(value: float) -> float | None:
    """JSON has no nan and no infinity."""
    return value if abs(value) < float("inf") else None


def _bytes(pictures: Tensor) -> bytes:
    return pictures.cpu().contiguous().numpy().tobytes()
