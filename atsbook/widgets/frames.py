"""Attacks frame by frame, packed into image sheets small enough for one page.

The evidence leaves frames out, for they are most of an attack's bytes. They ship as the sheets of
the page that shows them, and a page that is made again takes them from there where they are of the
very attacks that it asks for.
"""

import dataclasses
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from atsbook.attackers import Undone
from atsbook.experiment import AttackUnit
from atsbook.figures.sheets import brief, fitting, sheet, signed, spoken
from atsbook.figures.sheets import payload as with_files
from atsbook.findings.result import table_file
from atsbook.networks import dataset
from atsbook.runs.study import Request, Study
from atsbook.runs.tables import floors, label
from atsbook.store import Artifact
from atslib.attacks import ThroughPolicy, engine
from atslib.clients.prepare import to_images
from atslib.errors import AtsError
from atslib.measures.metrics import psnr
from atslib.policies.policy import parse_policy

FORMAT = "atslib-explorer-1"
SHEETS = "sheets.zip"
INDEX = "index.json"
CLIENTS = "images.webp"
FRAMES = "frames"  # the table of `Album.frames` among those of its page
# Bytes of all frames: a page of 2.5 MB holds them as base64, with room for two networks in it
BUDGET = 1_045_000
BEFORE = (ThroughPolicy, Undone)  # attacks that search the image before the policy


@dataclasses.dataclass(frozen=True)
class Album:
    """Image sheets, what is in them, and the same as a table.

    Attributes:
        index: `psnr` [scene][policy][image][frame] and `cost` [...][trace step] are the curves;
            `draws` [policy][image] are the operations as drawn; `floor` [scene][policy][image] is
            the PSNR of the best guess without the gradient: the mean training image after all that
            lies before what the attack searches; `keys` [scene][policy] are the attacks' own, in
            the store.
        files: the image sheets by name. `images.webp` has a row of originals and one row per policy
            of what the client used; `a-p.webp` has one row per image and one column per frame, of
            scene a and policy p.
        frames: one row per attack, policy, image and frame, with `step` and `psnr` in dB.
    """

    index: dict
    files: dict[str, bytes]
    frames: pd.DataFrame

    @property
    def payload(self) -> dict:
        """All that the page needs, as JSON holds it."""
        return with_files(self.index, self.files)

    @property
    def zipped(self) -> bytes:
        """A zip of the index and the sheets, which are compressed already; the same bytes at any
        time.
        """
        text = json.dumps(self.index, separators=(",", ":")) + "\n"
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as whole:
            for name, content in ({INDEX: text.encode()} | self.files).items():
                whole.writestr(zipfile.ZipInfo(name), content)  # of 1980, not of now
        return buffer.getvalue()


def read(folder: Path) -> Album:
    """The album whose `zipped` is the file `SHEETS` of a page's results, and whose table lies there
    too.

    Raises:
        AtsError: the sheets are missing or damaged, or the index is of another format.
    """
    file = Path(folder) / SHEETS
    try:
        with zipfile.ZipFile(file) as whole:
            index = json.loads(whole.read(INDEX))
            sheets = {name: whole.read(name) for name in whole.namelist() if name != INDEX}
        frames = pd.read_csv(table_file(folder, FRAMES))
    except (OSError, KeyError, json.JSONDecodeError, zipfile.BadZipFile) as error:
        raise AtsError(f"{file} cannot be read: {error}") from None
    if index.get("format") != FORMAT:
        raise AtsError(f"{file}: format {index.get('format')!r} must be {FORMAT!r}")
    return Album(index, sheets, frames)


def pack(
    study: Study,
    runs: Mapping[tuple[str, str], Request],
    *,
    scenes: Mapping[str, tuple[str, str]],
    policies: Mapping[str, str],
    kept: Path | None = None,
) -> Album:
    """What the explorer shows of these attacks.

    Args:
        runs: attacks of the same images by scene and policy; every scene has every policy, and as
            many frames and steps under each.
        scenes: a title and a line of detail for each scene.
        policies: what to call each policy.
        kept: results of a page that was made before, from which frames are taken that the evidence
            leaves out.
    Raises:
        NotKept: frames are in neither of them.
    """
    old = read(kept) if kept and (Path(kept) / SHEETS).exists() else None
    attacks = {key: run.unit for key, run in runs.items()}
    artifacts = {key: run.value for key, run in runs.items()}
    keys = {key: study.store.path(unit.kind, unit).stem for key, unit in attacks.items()}
    tables = []
    curves = {}
    sheets = {}
    for (scene, policy), artifact in artifacts.items():
        own = keys[scene, policy]
        if "frames" not in artifact.tensors and old and own in _places(old):
            table, curves[scene, policy], sheets[scene, policy] = _kept_frames(old, own)
        else:
            table = frame_rows(attacks[scene, policy], artifact)
            curves[scene, policy] = _curves(table)
        tables.append(table.assign(attack=scene, policy=label(policy)))
    frames = pd.concat(tables, ignore_index=True)
    index = {
        "format": FORMAT,
        "where": f"{study.dataset}, profile {study.profile}",
        **_about(attacks, artifacts, scenes, policies),
        "psnr": _nested(scenes, policies, curves, 4),
        "cost": _nested(scenes, policies, {k: costs(each) for k, each in artifacts.items()}, 3),
        "keys": [[keys[scene, policy] for policy in policies] for scene in scenes],
    }
    files = {}
    if old and old.index.get("keys") == index["keys"]:
        files[CLIENTS] = old.files[CLIENTS]
    else:
        first = artifacts[next(iter(scenes)), next(iter(policies))]
        used = [artifacts[next(iter(scenes)), policy]["target"] for policy in policies]
        files[CLIENTS] = sheet(to_images(torch.stack([first["original"], *used])), 90)
    new = {}
    for a, scene in enumerate(scenes):
        for p, policy in enumerate(policies):
            name = f"{a}-{p}.webp"
            files[name] = sheets.get((scene, policy), b"")  # all in this order
            if not files[name]:
                new[name] = artifacts[scene, policy]["frames"].transpose(0, 1)
    files |= fitting(new, BUDGET - sum(map(len, sheets.values())))
    columns = ["attack", "policy", "image", "step", "psnr"]
    return Album(index | {"sheets": list(files)}, files, frames[columns])


def _places(album: Album) -> dict[str, tuple[int, int]]:
    """Scene and policy of each attack in an album, by the attack's key."""
    rows = enumerate(album.index.get("keys", ()))
    return {key: (a, p) for a, row in rows for p, key in enumerate(row)}


def _kept_frames(album: Album, key: str) -> tuple[pd.DataFrame, list, bytes]:
    """The rows, the curves and the sheet of one attack in an album."""
    a, p = _places(album)[key]
    own = album.frames["attack"] == album.index["attacks"][a]["id"]
    own &= album.frames["policy"] == album.index["policies"][p]["id"]
    return album.frames[own], album.index["psnr"][a][p], album.files[f"{a}-{p}.webp"]


def aim(unit: AttackUnit, artifact: Artifact) -> Tensor:
    """What an attack's pictures are compared with, uint8 (B, C, H, W): what the client used, or
    what was before it.

    An attack through the policy searches the image after crop and flip and before the policy.
    """
    return unit.clients().cropped if isinstance(unit.attack, BEFORE) else artifact["target"]


def frame_rows(unit: AttackUnit, artifact: Artifact) -> pd.DataFrame:
    """One row per frame and image: `image`, `step`, and `psnr` in dB to the unit's `aim`."""
    if not len(artifact["frames"]):
        raise AtsError(f"{unit.title}: an attack without frames cannot be shown step by step")
    target = to_images(aim(unit, artifact))
    steps = engine.frame_steps(len(artifact["frames"]), last_step(artifact))
    rows = []
    for step, frame in zip(steps, artifact["frames"], strict=True):
        values = psnr(frame, target).double().numpy()
        rows.append(pd.DataFrame({"image": range(len(values)), "step": step, "psnr": values}))
    return pd.concat(rows, ignore_index=True)


def last_step(artifact: Artifact) -> int:
    """How many steps an attack took."""
    return int(artifact["trace_steps"][-1]) + 1


def costs(artifact: Artifact) -> list[list[float]]:
    """The cost of each image along the trace and at the end: (B, T + 1)."""
    return torch.cat([artifact["trace"], artifact["cost"][None]]).T.tolist()


def _curves(table: pd.DataFrame) -> list[list[float]]:
    """PSNR of each image along the frames: (B, F)."""
    return table.pivot(index="image", columns="step", values="psnr").to_numpy().tolist()


def _nested(
    scenes: Mapping[str, object],
    policies: Mapping[str, object],
    rows: Mapping[tuple[str, str], list],
    digits: int,
) -> list:
    """[scene][policy][image][...], significant digits only."""
    return [
        [[[brief(v, digits) for v in row] for row in rows[a, p]] for p in policies] for a in scenes
    ]


def _about(
    attacks: Mapping[tuple[str, str], AttackUnit],
    artifacts: Mapping[tuple[str, str], Artifact],
    scenes: Mapping[str, tuple[str, str]],
    policies: Mapping[str, str],
) -> dict:
    """What an index says of its images, policies and attacks, beside the curves."""
    first, *_ = scenes
    unit = attacks[first, next(iter(policies))]
    artifact = artifacts[first, next(iter(policies))]
    names = dataset(unit.model.dataset, "test").class_names
    lows = {key: [[low] for low in _floor(attacks[key], artifacts[key])] for key in attacks}
    floor = _nested(scenes, policies, lows, 4)
    last = list(policies)[-1]
    return {
        "size": list(artifact["target"].shape[1:]),
        "images": [names[i].replace("_", " ") for i in artifact["labels"].tolist()],
        "policies": [
            {"id": label(p), "title": title, "operations": spoken(parse_policy(p).names())}
            for p, title in policies.items()
        ],
        "attacks": [
            {"id": a, "title": title, "detail": detail}
            | _axes(attacks[a, last], artifacts[a, last])
            for a, (title, detail) in scenes.items()
        ],
        "draws": [words_drawn(attacks[first, p]) for p in policies],
        "floor": [[[low for (low,) in images] for images in scene] for scene in floor],
    }


def _axes(unit: AttackUnit, artifact: Artifact) -> dict:
    """The axes of an attack's curves, and whether it searches the picture before the policy."""
    last = last_step(artifact)
    return {
        "steps": last,
        "frames": engine.frame_steps(unit.frames, last),
        "trace": [*artifact["trace_steps"].tolist(), last],
        "before": isinstance(unit.attack, BEFORE),
    }


def _floor(unit: AttackUnit, artifact: Artifact) -> list[float]:
    """PSNR of the best guess without the gradient, of each image."""
    bare = isinstance(unit.attack, BEFORE)
    known = dataclasses.replace(unit, policy="") if bare else unit
    return floors(aim(unit, artifact), known)["floor_policy"].tolist()


def words_drawn(unit: AttackUnit) -> list[str]:
    """The operations that each of the unit's images went through, with the signs it drew."""
    policy = parse_policy(unit.policy)
    members = getattr(policy, "members", (policy,))
    own = unit.drawn(unit.policy)
    rows = zip(own.member.tolist(), own.signs.tolist(), strict=True)
    return [signed(members[m].ids, signs) for m, signs in rows]
