"""The explorer's data: attacks frame by frame, packed into image sheets small enough for one page."""

import dataclasses
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from atsbook.figures.sheets import brief, fitting, payload, sheet, signed, spoken
from atsbook.findings.result import Result, Verdict
from atsbook.runs.attacks import AttackUnit, attack_unit, before
from atsbook.runs.networks import ModelUnit, Unit, dataset, model_unit, trained
from atsbook.runs.settings import Settings
from atsbook.runs.store import Artifact, Store
from atsbook.runs.table1 import HYBRID, RANDOM, SEARCHED
from atsbook.runs.tables import attack_rows, floors, label, provenance
from atslib.attacks import ATTACKS, ThroughPolicy, engine
from atslib.clients.observe import ThreatModel
from atslib.clients.prepare import to_images
from atslib.clients.training import TrainConfig
from atslib.errors import AtsError
from atslib.files import write_atomically
from atslib.measures.metrics import psnr
from atslib.models import device_of
from atslib.policies.policy import parse_policy
from atslib.rng import rng

FORMAT = "atslib-explorer-1"
NETWORK = "network.safetensors"
SHEETS = "sheets.zip"
INDEX = "index.json"
IMAGES, FRAMES = 12, 12  # of all profiles but smoke
POLICIES = {
    "": "No policy",
    RANDOM: "Random",
    SEARCHED[0]: "Searched, first",
    SEARCHED[1]: "Searched, second",
    "7-4-15": "Searched for the ConvNet",  # the paper's Table 1b
    HYBRID: "Hybrid of both",
}
# Bytes of all frames: a page of 2.5 MB holds them as base64, with room for two networks in it
BUDGET = 1_045_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scene:
    """When the attacker strikes and how: a name, a preset, and the untrained network with the
    weight of the variation.

    With no `network` it is the settings' own, trained with the policy (in the regime `initial`
    without any, for the trainings of a page with six policies would take half a day), and the
    preset is taken as it is. An attack `through` the policy knows it, not what was drawn, and
    searches the image before it.
    """

    title: str
    preset: str
    network: str = ""
    tv: float | None = None
    through: bool = False
    frames: int = FRAMES


# The two ends: a small smooth network before training shows an image to anyone, a trained ResNet
# shows hardly anything, with a policy or without. A variation of 0.02 leads the preset's 0.1 by 2
# to 3 dB on that network.
SCENES = {
    "adam-cosine-tv": Scene(title="First round", preset="adam-cosine-tv", network="lenet", tv=0.02),
    "through-policy": Scene(
        title="First round, policy known",
        preset="adam-cosine-tv",
        network="lenet",
        tv=0.02,
        through=True,
        frames=5,
    ),
    "adam-cosine": Scene(title="After training", preset="adam-cosine"),
}
TRIAL, KEEP = (
    30,
    2,
)  # steps in every form of a known policy, and how many forms of an image are attacked in full


@dataclasses.dataclass(frozen=True)
class Explorer(Result):
    """A result with pictures: `index` says what is in the image sheets of `files` (see `packed`);
    `network` is a safetensors file.
    """

    index: dict = dataclasses.field(default_factory=dict, repr=False)
    files: dict[str, bytes] = dataclasses.field(default_factory=dict, repr=False)
    network: bytes = dataclasses.field(default=b"", repr=False)

    def write(self, results: Path) -> Path:
        """As `Result.write`, with `NETWORK` and the sheets, which are one file, `SHEETS`."""
        folder = super().write(results)
        text = json.dumps(self.index, separators=(",", ":")) + "\n"
        sheets = zipped({INDEX: text.encode()} | self.files)
        write_atomically(folder / NETWORK, lambda partial: partial.write_bytes(self.network))
        write_atomically(folder / SHEETS, lambda partial: partial.write_bytes(sheets))
        return folder

    @property
    def payload(self) -> dict:
        """All that the page needs, as JSON holds it."""
        return payload(self.index, self.files)


def zipped(files: dict[str, bytes]) -> bytes:
    """A zip of these files, which are compressed already; the same bytes at any time."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as whole:
        for name, content in files.items():
            whole.writestr(zipfile.ZipInfo(name), content)  # of 1980, not of now
    return buffer.getvalue()


def read(folder: Path) -> dict:
    """The payload from what `Explorer.write` left in `folder`.

    Raises:
        AtsError: the sheets are missing or damaged, or the index is of another format.
    """
    file = Path(folder) / SHEETS
    try:
        with zipfile.ZipFile(file) as whole:
            index = json.loads(whole.read(INDEX))
            sheets = {name: whole.read(name) for name in whole.namelist() if name != INDEX}
    except (OSError, KeyError, json.JSONDecodeError, zipfile.BadZipFile) as error:
        raise AtsError(f"{file} cannot be read: {error}") from None
    if index.get("format") != FORMAT:
        raise AtsError(f"{file}: format {index.get('format')!r} must be {FORMAT!r}")
    return payload(index, sheets)


def shown(settings: Settings) -> tuple[int, tuple[str, ...], tuple[str, ...], int]:
    """How many images, which policies and scenes, and how many frames a page of this profile has."""
    if settings.profile == "smoke":
        return 2, ("", HYBRID), ("through-policy", "adam-cosine"), 3
    return IMAGES, tuple(POLICIES), tuple(SCENES), FRAMES


def units(settings: Settings) -> dict[tuple[str, str], Unit]:
    """The attacks of the page, and the trained network that the reader's browser attacks."""
    return attacks(settings) | {("browser", ""): trained_small(settings)}


def trained_small(settings: Settings) -> ModelUnit:
    """The network of extension 6 after its training without a defense: small enough for a browser
    to attack.
    """
    train = TrainConfig(epochs=min(6, settings.epochs), batch=32, lr=0.02)
    share = min(0.1, settings.fraction)
    return model_unit(settings, model="relunet", train=train, fraction=share)


def _kept(settings: Settings, store: Store) -> bytes:
    """The artifact of `trained_small`, whose weights the archive leaves out."""
    unit = trained_small(settings)
    trained(unit, store, device_of(settings.device))
    return store.path(unit.kind, unit).read_bytes()


def attacks(settings: Settings) -> dict[tuple[str, str], AttackUnit]:
    """All attacks of the page by (scene, policy); their models are in them."""
    images, policies, scenes, frames = shown(settings)
    after = dataclasses.replace(settings, regime="trained")
    found = {}
    for name in scenes:
        scene = SCENES[name]
        for policy in policies:
            unit = attack_unit(after, policy, last=images, frames=min(frames, scene.frames))
            if settings.regime == "initial":  # one trained network for all policies
                unit = dataclasses.replace(unit, model=model_unit(after))
            attack = dataclasses.replace(ATTACKS[scene.preset], steps=settings.steps)
            if scene.network:
                attack = dataclasses.replace(attack, steps=2 * settings.control_steps, tv=scene.tv)
                model = dataclasses.replace(
                    unit.model, model=scene.network, train=None, fraction=1.0
                )
                unit = dataclasses.replace(unit, model=model)
            if scene.through:
                attack = ThroughPolicy(inner=attack, trial=min(TRIAL, attack.steps), keep=KEEP)
                unit = dataclasses.replace(unit, threat=ThreatModel(defense="policy"))
            found[name, policy] = dataclasses.replace(unit, attack=attack)
    return found


def aim(unit: AttackUnit, artifact: Artifact) -> Tensor:
    """What an attack's pictures are compared with, uint8 (B, C, H, W): what the client used, or
    what was before it.

    An attack through the policy searches the image after crop and flip and before the policy.
    """
    return before(unit) if isinstance(unit.attack, ThroughPolicy) else artifact["target"]


def run(settings: Settings, store: Store) -> Explorer:
    """Attack, and pack.

    Tables: `images`, one row per attack, policy and image; `frames`, one row per frame.
    """
    planned = attacks(settings)
    by_label = {(name, label(policy)): unit for (name, policy), unit in planned.items()}
    images, artifacts = attack_rows(by_label, ("attack", "policy"), settings, store)
    frames = [
        pd.DataFrame(
            {
                "attack": name,
                "policy": policy,
                "image": range(len(values)),
                "step": step,
                "psnr": values,
            }
        )
        for (name, policy), artifact in artifacts.items()
        for step, values in zip(
            frame_steps(artifact), frame_psnr(by_label[name, policy], artifact), strict=True
        )
    ]
    tables = {"images": images, "frames": pd.concat(frames, ignore_index=True)}
    artifacts = dict(zip(planned, artifacts.values(), strict=True))
    files = sheets(artifacts)
    facts = provenance(
        dataclasses.replace(settings, images=shown(settings)[0]), next(iter(artifacts.values()))
    )
    verdict = Verdict(
        "not measured", "the explorer shows single attacks and judges no claim", "There is none."
    )
    index = packed(planned, artifacts, facts) | {"sheets": list(files)}
    return Explorer("explorer", tables, facts, verdict, {}, index, files, _kept(settings, store))


def frame_steps(artifact: Artifact) -> list[int]:
    """The steps taken before each frame."""
    return engine.frame_steps(len(artifact["frames"]), int(artifact["trace_steps"][-1]) + 1)


def frame_psnr(unit: AttackUnit, artifact: Artifact) -> list[list[float]]:
    """PSNR of each frame to the unit's `aim`, in dB: (F, B)."""
    target = to_images(aim(unit, artifact))
    return [psnr(frame, target).tolist() for frame in artifact["frames"]]


def packed(
    attacks: dict[tuple[str, str], AttackUnit],
    artifacts: dict[tuple[str, str], Artifact],
    facts: dict[str, object],
) -> dict:
    """What the sheets show, and the curves: `psnr` [scene][policy][image][frame], `cost`
    [...][trace step].

    `draws` [policy][image] are the operations as drawn, `floor` [scene][policy][image] the PSNR of
    the best guess without the gradient: the mean training image after all that lies before the
    attack's `aim`. The sheet `images.webp` has a row of originals and one row per policy of what
    the client used; `a-p.webp` has one row per image and one column per frame, of scene a and
    policy p. See `sheet` for their layout.
    """
    scenes, policies = (list(dict.fromkeys(keys)) for keys in zip(*artifacts, strict=True))
    first = artifacts[scenes[0], policies[0]]
    images = dataset(str(facts["dataset"]), "test")
    names = [images.class_names[i].replace("_", " ") for i in first["labels"].tolist()]

    def each(of: Callable[[AttackUnit, Artifact], Tensor | list], digits: int) -> list:
        """[scene][policy][image][...], significant digits only."""
        rows = {
            key: zip(*of(attacks[key], artifact), strict=True)
            for key, artifact in artifacts.items()
        }
        return [
            [[[brief(v, digits) for v in row] for row in rows[a, p]] for p in policies]
            for a in scenes
        ]

    def floor(unit: AttackUnit, artifact: Artifact) -> list:
        known = (
            dataclasses.replace(unit, policy="") if isinstance(unit.attack, ThroughPolicy) else unit
        )
        return [floors(aim(unit, artifact), known)["floor_policy"].tolist()]

    return {
        "format": FORMAT,
        "where": f"{facts['dataset']}, profile {facts['profile']}",
        "size": list(first["target"].shape[1:]),
        "images": names,
        "policies": [
            {"id": label(p), "title": POLICIES[p], "operations": spoken(parse_policy(p).names())}
            for p in policies
        ],
        "attacks": [
            _scene(a, attacks[a, policies[-1]], artifacts[a, policies[-1]]) for a in scenes
        ],
        "draws": [drawn(attacks[scenes[0], p]) for p in policies],
        "floor": [[[low for (low,) in images] for images in scene] for scene in each(floor, 4)],
        "psnr": each(frame_psnr, 4),
        "cost": each(
            lambda _, artifact: torch.cat([artifact["trace"], artifact["cost"][None]]).tolist(), 3
        ),
    }


def _scene(name: str, unit: AttackUnit, artifact: Artifact) -> dict:
    """What the reader chooses between, and the axes of the curves; the unit has a policy."""
    trained = "untrained"
    if unit.model.train:
        trained = (
            "trained with the policy"
            if unit.model.train.policy == unit.policy
            else "trained without a policy"
        )
    scene = SCENES[name]
    attack = unit.attack.inner if scene.through else unit.attack
    detail = f"{unit.model.model}, {trained}\n{scene.preset}" + (
        f", TV {attack.tv:g}" if scene.network else ""
    )
    trace = [*artifact["trace_steps"].tolist(), attack.steps]
    known = {
        "steps": attack.steps,
        "frames": frame_steps(artifact),
        "trace": trace,
        "before": scene.through,
    }
    return {"id": name, "title": scene.title, "detail": detail} | known


def drawn(unit: AttackUnit) -> list[str]:
    """The operations that each of the unit's images went through, with the signs it drew."""
    policy = parse_policy(unit.policy)
    member, signs = policy.draw(unit.last, rng=rng(unit.seed, "policy", unit.policy))
    members = getattr(policy, "members", (policy,))
    rows = zip(member.tolist(), signs.tolist(), strict=True)
    return [signed(members[m].ids, s) for m, s in rows][unit.first :]


def sheets(artifacts: dict[tuple[str, str], Artifact]) -> dict[str, bytes]:
    """Every image sheet by its file name, the frames at the best quality within `BUDGET`."""
    scenes, policies = (list(dict.fromkeys(keys)) for keys in zip(*artifacts, strict=True))
    clients = [
        artifacts[scenes[0], policies[0]]["original"],
        *(artifacts[scenes[0], p]["target"] for p in policies),
    ]
    frames = {
        f"{a}-{p}.webp": artifacts[scene, policy]["frames"].transpose(0, 1)
        for a, scene in enumerate(scenes)
        for p, policy in enumerate(policies)
    }
    return {"images.webp": sheet(to_images(torch.stack(clients)), 90)} | fitting(frames, BUDGET)
