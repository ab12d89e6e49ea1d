"""What `python -m atsaudit` does."""

import argparse
import dataclasses
import re
import sys
import time

from atsaudit import update_files
from atsaudit.page import command_line
from atsaudit.report import AuditReport
from atsaudit.run_audit import audited
from atsaudit.sources import images_of, named_loss, weights_in
from atslib.clients.records import client_mode, mode_contradiction, network_of
from atslib.clients.updates import LocalTraining
from atslib.errors import AtsError
from atslib.models import Normalize, device_of, named_model
from atslib.shell import check_out
from atslib.weights import fill

MOMENTUM = 0.9
LIMITS = {"found": "limit", "named": "named_limit"}  # what `--limit` says → `AuditConfig`


def audit(args: argparse.Namespace) -> int:
    """Attack one's own network with one's own photographs, write the report; 0 within the limit, 3
    above, 4 unsure.
    """
    check_out(args.out, folder=True)
    report = run(args)
    file = report.save(args.out, pictures=not args.no_pictures)
    if args.no_pictures:  # what was kept of each case holds reconstructions
        for kept in (args.out / "state").glob("case-*.safetensors*"):
            kept.unlink()
    print(report.sentence)
    print(f"{report.line_up_sentence}{report.line_up_seconds}")
    print(f"{report.verdict}{f' ({report.limits})' if report.limits else ''}")
    if report.warning:
        print(report.warning)
    for doubt in report.doubts if report.exit_code == 4 else ():
        print(doubt)
    print(file)
    return report.exit_code


def run(args: argparse.Namespace) -> AuditReport:
    """The report of a command, not yet saved."""
    began = time.monotonic()
    settings = settings_of(args)
    images, names = images_of(args.data, args.image_size, args.fit)
    norm = normalization_of(args)
    own = named_model(args.model, images, args.seed, norm)
    # A factory is called twice, so that both networks are as it makes them.
    model = named_model(args.model, images, args.seed, norm)
    if ":" not in args.model:
        norm = None  # it normalizes by itself
    update = None
    notes = []
    if args.weights:
        weights, note = weights_in(args.weights)
        fill(model, weights, args.weights)
        notes += [note] if note else []
    kept_back = update_files.not_shared(model, args.shared) if args.shared else []
    contradictions = ()
    if args.update:
        kept = update_files.read(
            args.update, number=args.round, kind=args.kind, lr=args.lr, steps=args.local_steps,
            network=model,
        )  # fmt: skip
        update = (kept, update_files.rows_of(kept, names, len(images)))
        kept_back = update_files.kept_back(kept, model, args.shared)
        if kept_back and not args.weights:
            raise AtsError(
                f"--update {args.update}: clients sent no array for {', '.join(kept_back[:3])}; if these stay with them, "
                "give the network with a client's own with --weights: the attack is made by a server that knows them"
            )
        sizes = tuple(sorted({len(rows) for rows in update[1]}))
        local = None if kept.kind == "gradient" else LocalTraining(epochs=kept.steps, lr=kept.lr)
        told = client_mode(kept)
        against = mode_contradiction(kept, args.victim) if args.victim else ""
        contradictions = tuple(filter(None, (against, kept.contradiction)))
        settings["victim"] = args.victim or told or "eval"
        settings |= {"batch": sizes, "local": local, "clients": 1, "rounds": 1}
    for part in (own, model):
        for name in kept_back:
            part.get_parameter(name).requires_grad_(False)
    if kept_back:
        notes.append(
            f"{len(kept_back)} arrays stay with the clients, such as {kept_back[0]}: they are neither shared nor trained "
            "here, and the server is one that knows them all the same."
        )
    if update:
        model = network_of(update[0], model)
    given = bool(args.weights or args.update)
    place = device_of(args.device)
    model = model.to(place)
    own = own.to(place)
    report = audited(
        model,
        images,
        None,
        settings,
        untrained=own if given else model,
        normalize=norm,
        loss=named_loss(args.loss) if args.loss else None,
        folder=args.out / "state",
        class_names=(),
        progress=sys.stderr.isatty(),
        repeat=command_line(args.typed),
        update=update,
        contradictions=contradictions,
        began=began,
    )
    return dataclasses.replace(report, notes=(*report.notes, *notes))


def settings_of(args: argparse.Namespace) -> dict:
    """Fields of `AuditConfig`, as far as options say them."""
    names = (
        "policy",
        "defense",
        "labels",
        "clients",
        "rounds",
        "pretrained",
        "steps",
        "budget",
        "thorough",
        "seed",
    )
    settings = {name: getattr(args, name) for name in names}
    settings |= {
        "victim": args.victim or "eval",
        "batch_norm": args.batch_norm,
        "batch": batches(args.batch),
        "attacked": args.images,
        **limits_of(args.limit),
    }
    if args.update:
        return settings
    if args.local_steps is None:
        if args.lr is not None:
            raise AtsError(
                "--lr is for clients that train before they share; give --local-steps too"
            )
        return settings
    if args.lr is None:
        raise AtsError("--local-steps needs the clients' step size; give --lr too")
    momentum = MOMENTUM if args.optimizer == "momentum" else 0.0
    settings["local"] = LocalTraining(epochs=args.local_steps, lr=args.lr, momentum=momentum)
    settings["optimizer"] = "adam" if args.optimizer == "adam" else "sgd"
    return settings


def batches(text: str) -> tuple[int, ...]:
    """`"1,8"` → (1, 8)."""
    parts = text.split(",")
    if not all(re.fullmatch(r"\s*[1-9]\d*\s*", part, re.ASCII) for part in parts):
        raise AtsError(f"--batch {text!r} must be numbers of images, such as 1,8")
    return tuple(map(int, parts))


def limits_of(text: str | None) -> dict[str, float]:
    """`"found<=5%"` or `"found<=0.05"` → {"limit": 0.05}; `"named<=5%"` → {"named_limit": 0.05};
    both with a comma between them.
    """
    limits: dict[str, float] = {}
    for part in (text or "").split(",") if text is not None else ():
        match = re.fullmatch(r"\s*(found|named)\s*<=\s*(\d+(?:\.\d+)?)\s*(%?)\s*", part, re.ASCII)
        share = float(match[2]) / (100 if match[3] else 1) if match else 0.0
        name = LIMITS[match[1]] if match else ""
        if not 0 < share < 1 or name in limits:
            raise AtsError(
                f"--limit {text!r} must be a share that may be found, such as 'found<=5%', one that may be named by "
                "comparing gradients, such as 'named<=5%', or both with a comma between them"
            )
        limits[name] = share
    return limits


def normalization_of(args: argparse.Namespace) -> tuple[list[float], list[float]] | None:
    """Mean and deviation of each channel."""
    if (args.mean is None) != (args.std is None):
        raise AtsError("--mean and --std belong together; give both")
    if args.mean is None:
        return None
    try:
        mean, std = ([float(part) for part in text.split(",")] for text in (args.mean, args.std))
    except ValueError:
        raise AtsError(
            f"--mean {args.mean!r} --std {args.std!r}: give numbers, such as 0.5,0.5,0.5"
        ) from None
    Normalize(mean, std)
    return mean, std
