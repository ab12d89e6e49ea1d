"""A gate at the client: it attacks the client's own update, and holds back one that gives too much
away.

`ClientApp(mods=[gate(...)])`, or pinned by a site in its own app, where the author of the training
cannot leave it out. The first mod of a list is the outermost: a gate there sees what leaves the
client, after Flower's own mods have clipped it and added noise; behind them it sees the update as
it was trained.
"""

import dataclasses
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from atsaudit.candidate_attacks import PRESETS
from atsaudit.config import Case
from atsaudit.outcome import Outcome, Pool, judge
from atsaudit.run_audit import images_of, prepared, takes_one_image
from atsaudit.views import Seen
from atsfed import flower
from atslib.attacks import reconstruct
from atslib.attacks.attack import Attack
from atslib.clients.observe import observe
from atslib.clients.records import (
    Record,
    Recorded,
    client_mode,
    network_of,
    observed,
    steps_contradiction,
)
from atslib.clients.view import ThreatModel
from atslib.errors import AtsError, check_whole, choose
from atslib.models import Loss
from atslib.weights import fitted

# isort: split
# After the module that says which extra is missing.
from flwr.app import Context, Error, Message

ClientAppCallable = Callable[[Message, Context], Message]
Photographs = Callable[[Context], tuple[Tensor, Tensor]]
LEAST = 20  # photographs among which one is to be found
CONTROLS = 8  # images on whose single gradients the attack has to work
LOG = "gate.jsonl"
SECURE = "secaggplus"  # in the name of what Flower's secure aggregation sends along
HELD_BACK = 4_700  # of Flower's error in place of the update; Flower's own codes are small


@dataclasses.dataclass(frozen=True)
class Figure:
    """What the gate found in a round.

    Attributes:
        round: its number.
        images: behind the update.
        found: how many of them the attack finds; None where it was not attacked.
        control: how many of `controls` single gradients it finds, on the same weights.
        chance: share found by the label alone.
        seconds: that it took.
        sent: whether the update was sent.
        why: in words.
    """

    round: int
    images: int
    found: int | None
    control: int
    controls: int
    chance: float
    seconds: float
    sent: bool
    why: str


def gate(
    network: Callable[[], nn.Module],
    photographs: Photographs,
    *,
    others: Photographs | None = None,
    limit: float,
    lr: float,
    steps: int | Callable[[Context], int],
    normalize: tuple | None = None,
    loss: Loss | None = None,
    every: int = 1,
    folder: str | Path = "gate",
    attack: str | Attack = "annealed-convnet",
    attack_steps: int = 60,
    most: int = 32,
    kind: str = "weights",
    strict: bool = False,
) -> Callable[[Message, Context, ClientAppCallable], Message]:
    """A mod of Flower that attacks an update before it leaves.

    Args:
        network: makes the federation's network; its weights are taken from the message.
        photographs: gives the client's own images behind its update, (N, C, H, W) uint8 or floats
            in [0, 1], and their labels (N,), by the client's context.
        others: gives further photographs of the same kind with their labels, which were not behind
            the update: each image has to be found among both, at least 20 together.
        limit: share of the images behind the update that may be found, in (0, 1). Above it the
            server gets an error in place of the answer, which Flower counts among the failures of
            the round and goes on. (Weights that are the server's own would end the round of a
            strategy that clips: it divides by the length of the change.)
        lr: step size of the client's training, plain SGD. Whether batch normalization ran in train
            mode is told by its running statistics and counters in what leaves; without them it is
            taken to be in eval mode.
        steps: how many steps it takes: a number, or a function of the client's context. Where the
            counters of batch normalization tell another number, the gate cannot tell.
        normalize: mean and deviation of each channel, where the network does not start with
            `atslib.Normalize`.
        loss: what the client trains with, as in `atsaudit.audit`; by default the cross-entropy.
        every: attack every so many rounds: 1 all, 5 rounds 5, 10 and so on; and the round after one
            that was held back.
        folder: of the figures, a line of JSON per round in `gate.jsonl`.
        attack: the one that an audit of the same network found best, by name or as an attack.
        attack_steps: of an attack by name.
        most: images behind an update that are attacked at most; an update of more is not attacked.
        kind: what the client sends: "weights", their "difference" or a "gradient".
        strict: whether an update is held back also where the gate cannot tell: because it is of
            more than `most` images, or because from single gradients on the same weights the attack
            finds no more than the label alone.
    Returns:
        The mod, for `ClientApp(mods=[...])`.
    Raises:
        AtsError: a wrong setting, at once; in the round images or a network that do not fit, or
            secure aggregation, which hides from the gate what leaves.
    """
    if not 0 < limit < 1:
        raise AtsError(f"gate: limit={limit!r} must be a share above 0 and below 1")
    for name, value in (("every", every), ("attack_steps", attack_steps), ("most", most)):
        check_whole(f"gate: {name}", value, 1)
    choose("gate: kind", kind, ("weights", "difference", "gradient"))
    if isinstance(attack, str):
        choose("gate: attack", attack, PRESETS)
        attack = dataclasses.replace(PRESETS[attack], steps=attack_steps)
    if not lr > 0:
        raise AtsError(f"gate: lr={lr!r} must be above 0")
    place = Path(folder) / LOG

    def figure(message: Message, reply: Message, context: Context, number: int) -> Figure:
        began = time.monotonic()
        pixels, labels, _ = images_of(*photographs(context), ())
        due = number % every == 0 or _held_back(place)
        if not due or len(pixels) > most:
            why = f"not attacked: one round in {every} is"
            if due:
                why = f"not attacked: {len(pixels)} images are behind it, and the gate takes at most {most}"
            return Figure(number, len(pixels), None, 0, 0, 0.0, 0.0, not (due and strict), why)
        taken = steps(context) if callable(steps) else steps
        beside = images_of(*others(context), ())[:2] if others else (pixels[:0], labels[:0])
        pool = (torch.cat([pixels, beside[0]]), torch.cat([labels, beside[1]]))
        if len(pool[0]) < LEAST:
            raise AtsError(
                f"gate: {len(pool[0])} photographs are too few to say whether one is found among them; with `others` "
                f"at least {LEAST} are needed"
            )
        fresh = network()  # whose names arrays get that have numbers, as of a NumPyClient
        sent = fitted(_arrays(message), fresh, "gate: what the server sent", partial=True)
        got = fitted(_arrays(reply), fresh, "gate: what this client sends", partial=True)
        records = (Record("this client", got, (), len(pixels)),)
        recorded = Recorded(sent, kind, lr, taken, records, place.parent)
        model = prepared(network_of(recorded, fresh), normalize, pixels, loss)
        own, control = _attacked(recorded, model, len(pixels), pool, attack)
        against = steps_contradiction(recorded)
        return _judged(number, own, control, limit, strict, time.monotonic() - began, against)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if any(SECURE in name for name in message.content.config_records):
            raise AtsError(
                "gate: secaggplus_mod adds masks to each update, so that nobody sees it alone, the gate included; leave "
                "out one of the two"
            )
        reply = call_next(message, context)
        if message.metadata.message_type.split(".")[0] != "train" or reply.has_error():
            return reply
        made = figure(message, reply, context, _number(message, place))
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dataclasses.asdict(made)) + "\n")
        logger = logging.getLogger("flwr")
        logger.log(
            logging.INFO if made.sent else logging.WARNING,
            "gate, round %s: %s",
            made.round,
            made.why,
        )
        if made.sent:
            return reply
        why = made.why if made.why.startswith("held back") else f"held back: {made.why}"
        return Message(Error(code=HELD_BACK, reason=f"gate: {why}"), reply_to=message)

    return mod


def _judged(
    number: int,
    own: Outcome,
    control: Outcome,
    limit: float,
    strict: bool,
    seconds: float,
    against: str = "",
) -> Figure:
    """What the numbers mean for sending; `against` says what contradicts the training that was said."""
    found = int(own.found.sum())
    count = len(own.found)
    told = int(control.found.sum())
    controls = len(control.found)
    chance = float(own.chance.mean())
    works = told / controls > float(control.chance.mean()) and not against
    above = found / count > limit
    if above:
        why = f"held back: {found} of {count} photographs are found, and at most {limit:.1%} may be"
    elif works:
        why = f"sent: {found} of {count} photographs are found ({told} of {controls} from single gradients)"
    else:
        state = "held back" if strict else "sent"
        why = f"{state}, but the gate cannot tell: " + (
            against or f"of single gradients the attack finds only {told} of {controls}"
        )
    sent = not above and (works or not strict)
    return Figure(number, count, found, told, controls, chance, round(seconds, 1), sent, why)


def _attacked(
    recorded: Recorded,
    model: nn.Module,
    count: int,
    photographs: tuple[Tensor, Tensor],
    attack: Attack,
) -> tuple[Outcome, Outcome]:
    """What is found of the first `count` photographs, those behind the update, and of single
    gradients of them.
    """
    pixels, labels = photographs
    rows = torch.arange(count)
    images = (pixels[:count] / 255).to(next(model.parameters()))
    pool = Pool.of(pixels, labels, rows)
    shape = tuple(pixels.shape[1:])
    mode = client_mode(recorded) or "eval"
    threat = ThreatModel(batch=count, victim=mode)
    view = observed(recorded, model, [rows], labels, threat, shape)
    shared = "gradient" if recorded.kind == "gradient" else "update"
    case = Case(weights="given", shared=shared, batch=count, recorded=True)
    made = reconstruct(view, attack, rng=0)
    own = judge(made.images, made.labels, Seen(view, images, None), rows, pool, case, before=False)
    size = 1 if takes_one_image(model, pixels, mode) else count
    few = rows[: max(CONTROLS // size, 1) * size]
    single = observe(
        model, images[few], labels[few], threat=ThreatModel(batch=size, victim=mode), rng=0
    )
    made = reconstruct(single, attack, rng=0)
    known = Case(weights="given", control=True, batch=size)
    control = judge(
        made.images, made.labels, Seen(single, images[few], None), few, pool, known, before=False
    )
    return own, control


def _arrays(message: Message) -> dict[str, Tensor]:
    """The arrays of a message's single record."""
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise AtsError(f"gate: the message has {len(records)} records of arrays; it takes one")
    return flower._tensors(records[0])


def _figures(place: Path) -> list[dict]:
    return (
        [json.loads(line) for line in place.read_text(encoding="utf-8").splitlines()]
        if place.exists()
        else []
    )


def _held_back(place: Path) -> bool:
    """Whether the last update was held back: then the next one is attacked too."""
    figures = _figures(place)
    return bool(figures) and not figures[-1]["sent"]


def _number(message: Message, place: Path) -> int:
    """The number of the round: the server's, where it says it, else one more than the last."""
    for record in message.content.config_records.values():
        if isinstance(record.get("server-round"), int):
            return record["server-round"]
    figures = _figures(place)
    return figures[-1]["round"] + 1 if figures else 1
