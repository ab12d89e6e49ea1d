"""The explorer's data: attacks frame by frame, packed into image sheets small enough for one page."""

import base64
import dataclasses
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import Tensor

from atslib.attacks import ATTACKS, engine
from atslib.clients.prepare import to_images
from atslib.errors import AtsError
from atslib.measures.metrics import psnr
from atslib.policies.policy import OPS, parse_policy
from atslib.report.result import NO_POLICY, Result, Verdict
from atslib.report.units.defended import networks
from atslib.report.units.networks import ModelUnit, Unit, dataset, device_of, model_unit, trained
from atslib.report.units.settings import Settings
from atslib.report.units.table1 import HYBRID, RANDOM, SEARCHED
from atslib.report.units.tables import attack_rows, floors, label, provenance
from atslib.report.units.units import AttackUnit, attack_unit
from atslib.rng import rng
from atslib.store import Artifact, Store, write_atomically

FORMAT = "atslib-explorer-1"
NETWORK = "network.safetensors"
IMAGES, FRAMES = 12, 12  # of all profiles but smoke
POLICIES = {
    "": "No policy",
    RANDOM: "Random",
    SEARCHED[0]: "Searched, first",
    SEARCHED[1]: "Searched, second",
    "7-4-15": "Searched for the ConvNet",  # the paper's Table 1b
    HYBRID: "Hybrid of both",
}
SIGNED = ("shearY", "translateX", "translateY", "color", "contrast", "brightness", "sharpness")
BUDGET = 1_050_000  # bytes of all frames: a page of 2.5 MB holds them as base64, with room for two networks in it
QUALITIES = (75, 60, 50, 40, 30, 20, 10, 5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scene:
    """When the attacker strikes: a name, and the untrained network it meets with the weight of the total variation.

    With no `network` it is the settings' own, trained with the policy (in the regime `initial` without any, for the
    trainings of a page with six policies would take half a day), and the preset is taken as it is.
    """

    title: str
    network: str = ""
    tv: float | None = None


# By preset. The two ends: a small smooth network before training shows an image to anyone, a trained ResNet shows
# hardly anything, with a policy or without. A variation of 0.02 leads the preset's 0.1 by 2 to 3 dB on that network.
SCENES = {
    "adam-cosine-tv": Scene(title="First round", network="lenet", tv=0.02),
    "adam-cosine": Scene(title="After training"),
}


@dataclasses.dataclass(frozen=True)
class Explorer(Result):
    """A result with pictures: `index` says what is in the image sheets of `files` (see `packed`), beside `NETWORK`."""

    index: dict = dataclasses.field(default_factory=dict, repr=False)
    files: dict[str, bytes] = dataclasses.field(default_factory=dict, repr=False)

    def write(self, results: Path) -> Path:
        """As `Result.write`, with the files and, last of them, `index.json`."""
        folder = super().write(results)
        for name, content in self.files.items():
            write_atomically(folder / name, lambda partial, content=content: partial.write_bytes(content))
        text = json.dumps(self.index, separators=(",", ":")) + "\n"
        write_atomically(folder / "index.json", lambda partial: partial.write_text(text))
        for stale in set(folder.glob("*.webp")) - {folder / name for name in self.files}:
            stale.unlink()
        return folder

    @property
    def payload(self) -> dict:
        """All that the page needs, as JSON holds it."""
        return payload(self.index, {name: self.files[name] for name in self.index["sheets"]})


def payload(index: dict, files: dict[str, bytes]) -> dict:
    """`index` with its image sheets inside, as data URIs."""
    uris = {name: f"data:image/webp;base64,{base64.b64encode(data).decode()}" for name, data in files.items()}
    return index | {"files": uris}


def read(folder: Path) -> dict:
    """The payload from what `Explorer.write` left in `folder`.

    Raises:
        AtsError: a file is missing, or the index is of another format.
    """
    folder = Path(folder)
    try:
        index = json.loads((folder / "index.json").read_text())
        if index.get("format") != FORMAT:
            raise AtsError(f"{folder / 'index.json'}: format {index.get('format')!r} must be {FORMAT!r}")
        return payload(index, {name: (folder / name).read_bytes() for name in index["sheets"]})
    except OSError as error:
        raise AtsError(f"{error.filename}: cannot be read ({error.strerror})") from None


def shown(settings: Settings) -> tuple[int, tuple[str, ...], tuple[str, ...], int]:
    """How many images, which policies and presets, and how many frames a page of this profile has."""
    if settings.profile == "smoke":
        return 2, ("", HYBRID), ("adam-cosine",), 3
    return IMAGES, tuple(POLICIES), tuple(SCENES), FRAMES


def units(settings: Settings) -> dict[tuple[str, str], Unit]:
    """The attacks of the page, and the trained network that the reader's browser attacks."""
    return attacks(settings) | {("browser", ""): trained_small(settings)}


def trained_small(settings: Settings) -> ModelUnit:
    """The network of extension 6 after its training without a defense: small enough for a browser to attack."""
    return networks(settings, [NO_POLICY])[NO_POLICY, settings.seed]


def _kept(settings: Settings, store: Store) -> bytes:
    """The artifact of `trained_small`, whose weights the archive leaves out."""
    unit = trained_small(settings)
    trained(unit, store, device_of(settings.device))
    return store.path(unit.kind, unit).read_bytes()


def attacks(settings: Settings) -> dict[tuple[str, str], AttackUnit]:
    """All attacks of the page by (preset, policy); their models are in them."""
    images, policies, presets, frames = shown(settings)
    after, by_preset = dataclasses.replace(settings, regime="trained"), {}
    for name in presets:
        scene = SCENES[name]
        for policy in policies:
            unit = attack_unit(after, policy, last=images, frames=frames)
            if settings.regime == "initial":  # one trained network for all policies
                unit = dataclasses.replace(unit, model=model_unit(after))
            attack = dataclasses.replace(ATTACKS[name], steps=settings.steps)
            if scene.network:
                attack = dataclasses.replace(attack, steps=2 * settings.control_steps, tv=scene.tv)
                model = dataclasses.replace(unit.model, model=scene.network, train=None, fraction=1.0)
                unit = dataclasses.replace(unit, model=model)
            by_preset[name, policy] = dataclasses.replace(unit, attack=attack)
    return by_preset


def run(settings: Settings, store: Store) -> Explorer:
    """Attack, and pack. Tables: `images`, one row per attack, policy and image; `frames`, one row per frame."""
    planned = attacks(settings)
    by_label = {(name, label(policy)): unit for (name, policy), unit in planned.items()}
    images, artifacts = attack_rows(by_label, ("attack", "policy"), settings, store)
    frames = [
        pd.DataFrame({"attack": name, "policy": policy, "image": range(len(values)), "step": step, "psnr": values})
        for (name, policy), artifact in artifacts.items()
        for step, values in zip(frame_steps(artifact), frame_psnr(artifact), strict=True)
    ]
    tables = {"images": images, "frames": pd.concat(frames, ignore_index=True)}
    artifacts = dict(zip(planned, artifacts.values(), strict=True))
    files = sheets(artifacts)
    facts = provenance(dataclasses.replace(settings, images=shown(settings)[0]), next(iter(artifacts.values())))
    verdict = Verdict("not measured", "the explorer shows single attacks and judges no claim", "There is none.")
    index = packed(planned, artifacts, facts) | {"sheets": list(files)}
    return Explorer("explorer", tables, facts, verdict, {}, index, files | {NETWORK: _kept(settings, store)})


def frame_steps(artifact: Artifact) -> list[int]:
    """The steps taken before each frame."""
    return engine.frame_steps(len(artifact["frames"]), int(artifact["trace_steps"][-1]) + 1)


def frame_psnr(artifact: Artifact) -> list[list[float]]:
    """PSNR of each frame to what the client used, in dB: (F, B)."""
    target = to_images(artifact["target"])
    return [psnr(frame, target).tolist() for frame in artifact["frames"]]


def packed(
    attacks: dict[tuple[str, str], AttackUnit], artifacts: dict[tuple[str, str], Artifact], facts: dict[str, object]
) -> dict:
    """What the sheets show, and the curves: `psnr` [preset][policy][image][frame], `cost` [...][trace step].

    `draws` [policy][image] are the operations as drawn, `floor` [policy][image] the PSNR of the mean training
    image. The sheet `images.webp` has a row of originals and one row per policy of what the client used; `a-p.webp`
    has one row per image and one column per frame, of preset a and policy p. See `sheet` for their layout.
    """
    presets, policies = (list(dict.fromkeys(keys)) for keys in zip(*artifacts, strict=True))
    first = artifacts[presets[0], policies[0]]
    images = dataset(str(facts["dataset"]), "test")
    names = [images.class_names[i].replace("_", " ") for i in first["labels"].tolist()]
    floor = [
        floors(artifacts[presets[0], p]["target"], attacks[presets[0], p])["floor_mean"].tolist() for p in policies
    ]

    def each(of: Callable[[Artifact], Tensor | list], digits: int) -> list:
        """[preset][policy][image][...], significant digits only."""
        return [
            [[[brief(v, digits) for v in row] for row in zip(*of(artifacts[a, p]), strict=True)] for p in policies]
            for a in presets
        ]

    return {
        "format": FORMAT,
        "where": f"{facts['dataset']}, profile {facts['profile']}",
        "size": list(first["target"].shape[1:]),
        "images": names,
        "policies": [
            {"id": label(p), "title": POLICIES[p], "operations": spoken(parse_policy(p).names())} for p in policies
        ],
        "attacks": [_scene(a, attacks[a, policies[-1]], artifacts[a, policies[-1]]) for a in presets],
        "draws": [drawn(attacks[presets[0], p]) for p in policies],
        "floor": [[brief(v) for v in lows] for lows in floor],
        "psnr": each(frame_psnr, 4),
        "cost": each(lambda artifact: torch.cat([artifact["trace"], artifact["cost"][None]]).tolist(), 3),
    }


def brief(value: float, digits: int = 4) -> float | None:
    """Significant digits only; JSON has no nan and no infinity."""
    return float(f"{value:.{digits}g}") if np.isfinite(value) else None


def _scene(name: str, unit: AttackUnit, artifact: Artifact) -> dict:
    """What the reader chooses between, and the axes of the curves; the unit has a policy."""
    trained = "untrained"
    if unit.model.train:
        trained = "trained with the policy" if unit.model.train.policy == unit.policy else "trained without a policy"
    detail = f"{unit.model.model}, {trained}\n{name}" + (f", TV {unit.attack.tv:g}" if SCENES[name].network else "")
    trace = [*artifact["trace_steps"].tolist(), unit.attack.steps]
    known = {"steps": unit.attack.steps, "frames": frame_steps(artifact), "trace": trace}
    return {"id": name, "title": SCENES[name].title, "detail": detail} | known


def spoken(names: str) -> str:
    """`translateX 9` → `translate X 9`."""
    return re.sub(r"([a-z])([XY]) ", r"\1 \2 ", names)


def drawn(unit: AttackUnit) -> list[str]:
    """The operations that each of the unit's images went through, with the signs it drew."""
    policy = parse_policy(unit.policy)
    member, signs = policy.draw(unit.last, rng=rng(unit.seed, "policy", unit.policy))
    members = getattr(policy, "members", (policy,))
    rows = zip(member.tolist(), signs.tolist(), strict=True)
    return [signed(members[m].ids, s) for m, s in rows][unit.first :]


def signed(ids: Sequence[int], signs: Sequence[int]) -> str:
    """Operations in words, with + or − where there is a sign: `translate X −9 → contrast +6`."""
    words = []
    for index, sign in zip(ids, signs, strict=False):
        op, mark = OPS[index], "+" if sign > 0 else "−"
        words.append(f"{op.name} {mark if op.name in SIGNED else ''}{op.level}")
    return spoken(" → ".join(words)) or "no operation"


def sheets(artifacts: dict[tuple[str, str], Artifact]) -> dict[str, bytes]:
    """Every image sheet by its file name, the frames at the best quality within `BUDGET`."""
    presets, policies = (list(dict.fromkeys(keys)) for keys in zip(*artifacts, strict=True))
    clients = [artifacts[presets[0], policies[0]]["original"], *(artifacts[presets[0], p]["target"] for p in policies)]
    frames = {
        f"{a}-{p}.webp": artifacts[preset, policy]["frames"].transpose(0, 1)
        for a, preset in enumerate(presets)
        for p, policy in enumerate(policies)
    }
    return {"images.webp": sheet(to_images(torch.stack(clients)), 90)} | fitting(frames, BUDGET)


def fitting(pictures: dict[str, Tensor], budget: int) -> dict[str, bytes]:
    """Sheets by file name at the best quality at which all together have at most `budget` bytes, else the least."""
    for quality in QUALITIES:
        files = {name: sheet(rows, quality) for name, rows in pictures.items()}
        if sum(map(len, files.values())) <= budget:
            break
    return files


def sheet(pictures: Tensor, quality: int) -> bytes:
    """A WebP of (R, N, C, H, W) pictures in [0, 1]: R rows of N, the channels below each other as grey images.

    WebP halves the resolution of colours, which at 32 pixels spoils them (measured on frames of attacks: 14
    to 21 dB). Channels as grey planes keep it: over 31 dB in the same bytes.
    """
    planes = (pictures.detach().cpu().clamp(0, 1) * 255).round().byte().permute(2, 0, 3, 1, 4)
    channels, rows, height, columns, width = planes.shape
    grey = planes.reshape(channels * rows * height, columns * width).numpy()
    buffer = io.BytesIO()
    Image.fromarray(grey).convert("RGB").save(buffer, "WEBP", quality=quality, method=4)
    return buffer.getvalue()
