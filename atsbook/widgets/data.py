"""Data of the figures that a reader touches on the pages of claims 6 and 7 and of all policies, as
JSON holds it.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from atsbook.figures.sheets import brief, fitting, sheet, signed, spoken
from atsbook.figures.sheets import payload as with_files
from atsbook.findings import statistics as agreement
from atsbook.findings.compare import matrices
from atsbook.networks import dataset
from atsbook.requests.sweep import all_policies
from atsbook.runs.study import Handle, Study
from atsbook.runs.tables import label
from atsbook.store import Artifact
from atslib.clients.prepare import to_images
from atslib.policies.differentiable import SIGNED
from atslib.policies.operations import apply
from atslib.policies.policy import CANONICAL, OPS, Policy, magnitude

IMAGES = 12  # from which the reader of `builder` chooses
EXAMPLE = 5  # the test image that shows what each operation does; of CIFAR-100 a tulip
SHOWN = 2  # attacked images behind a point of the scatter
BUDGET = 300_000  # bytes of the scatter's reconstructions
SCORE_CALL = 'atslib.privacy_score(model, images, atslib.Policy.parse("{}"), rng=atslib.rng(0))'


def operations() -> list[dict]:
    """The 50 as a script applies them: kernel and magnitude, and their words with either sign."""
    return [
        {
            "name": op.name,
            "magnitude": magnitude(op),
            "words": spoken(Policy((index,)).names()),
            "drawn": [signed((index,), (sign,)) for sign in (1, -1)],
            "signed": op.name in SIGNED and op.level > 0,
        }
        for index, op in enumerate(OPS)
    ]


def pictures(name: str, indices: Iterable[int]) -> dict:
    """Test images of a data set: `size` (C, H, W), `images`, their class names, and `pixels`, their
    bytes in base64.
    """
    images = dataset(name, "test")
    chosen = images[list(indices)]
    return {
        "size": list(chosen.pixels.shape[1:]),
        "images": [images.class_names[i].replace("_", " ") for i in chosen.labels.tolist()],
        "pixels": base64.b64encode(chosen.pixels.contiguous().numpy().tobytes()).decode(),
    }


def _where(study: Study) -> str:
    return f"{study.dataset}, profile {study.profile}"


# --- claim 6 ------------------------------------------------------------------------------------------------


def ranking(study: Study, table: pd.DataFrame, reference: float) -> dict:
    """One row per transformation of `transformations.ranking`, and an image to show each on.

    Args:
        reference: the score of doing nothing.
    """
    words = {"id": int, "n": int, "rank": int, "rank low": int, "rank high": int, "same as": str}
    rows = table.rename_axis("id").reset_index()
    numbers = {
        name: [brief(value) for value in rows[name]]
        for name in ("s_pri", "low", "high", "in top five")
    }
    whole = {name: [kind(value) for value in rows[name]] for name, kind in words.items()}
    columns = whole | numbers
    example = min(EXAMPLE, len(dataset(study.dataset, "test")) - 1)
    return {
        "where": _where(study),
        "operations": operations(),
        "reference": brief(reference),
        "rows": [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ],
    } | pictures(study.dataset, [example])


def builder(study: Study, policies: Handle, singles: Handle, presets: Mapping[str, str]) -> dict:
    """Twelve images, the operations, and the curve and score of every policy that is scored.

    Args:
        policies, singles: scores of whole policies, and of single operations.
        presets: policies to choose from, with what to call each.
    """
    return {
        "where": _where(study),
        "operations": operations(),
        "canonical": list(CANONICAL),
        "presets": {label(policy): title for policy, title in presets.items()},
        "start": "3-1-7",
        "n": singles.request.images,
        "scored": [row for handle in (policies, singles) for row in _curves(handle)],
        "call": SCORE_CALL,
    } | pictures(study.dataset, range(min(IMAGES, len(dataset(study.dataset, "test")))))


def _curves(scores_of: Handle) -> list[dict]:
    """Each policy's similarity of gradients and its score, means over images."""
    kept = scores_of.value
    scores, curves = (kept[name].double().mean(1).tolist() for name in ("scores", "curves"))
    rows = zip(scores_of.request.policies, scores, curves, strict=True)
    return [
        {"id": p, "s_pri": brief(s), "curve": [brief(v) for v in curve]} for p, s, curve in rows
    ]


def steps(payload: dict, *, columns: int = 6) -> dict[str, Tensor]:
    """Rows of images for `plots.sheet`: originals, and what each operation of the first policy
    makes of them.
    """
    raw = torch.frombuffer(bytearray(base64.b64decode(payload["pixels"])), dtype=torch.uint8)
    pixels = raw.view(-1, *payload["size"])[:columns]
    rows = {"original": pixels}
    for place, index in enumerate(Policy.parse(payload["start"]).ids, 1):
        rows[f"{place}. {payload['operations'][index]['drawn'][0]}"] = pixels = apply(index, pixels)
    return rows


# --- claim 7 ------------------------------------------------------------------------------------------------


def scatter(
    table: pd.DataFrame, artifacts: Mapping[str, Artifact], name: str, where: str, main: str
) -> dict:
    """One point per policy and network, and sheets of what its clients used and what the attacker
    found.

    The sheet `images.webp` has a row of originals; in `client.webp` and `found.webp` a row is an
    image and a column a policy, in the order of `points`.

    Args:
        table: one row per policy and image, with `psnr`, `floor_noise` and a column `s_pri …` for
            each network.
        artifacts: the attacks by policy.
        name: of the data set.
        where: the data set and the profile, in words.
        main: the network that is attacked, one of those that scores are from.
    """
    images = dataset(name, "test")
    attacks = list(artifacts.values())
    count = len(attacks[0]["labels"])
    few = slice(0, min(SHOWN, count))
    client, recovered = (
        torch.stack([a[part][few] for a in attacks], 1) for part in ("target", "reconstruction")
    )
    rows = [table[table["policy"] == policy] for policy in artifacts]
    networks = [
        column.removeprefix("s_pri ") for column in table.columns if column.startswith("s_pri ")
    ]
    labels = attacks[0]["labels"][few].tolist()
    index = {
        "where": where,
        "size": list(client.shape[2:]),
        "images": [images.class_names[i].replace("_", " ") for i in labels],
        "n": count,
        "networks": [{"name": network, "r": _pearson(table, network)} for network in networks],
        "main": networks.index(main),
        "points": [
            {
                "id": policy,
                "words": spoken(Policy.parse(policy).names()),
                "score": [brief(own[f"s_pri {network}"].mean()) for network in networks],
                "psnr": brief(own["psnr"].mean()),
                "noise": brief(own["floor_noise"].mean()),
                "each": [brief(value) for value in own["psnr"].iloc[few]],
            }
            for policy, own in zip(artifacts, rows, strict=True)
        ],
    }
    original = attacks[0]["original"][few][None]
    clients = {"images.webp": _sheet(original, 90), "client.webp": _sheet(client, 90)}
    return with_files(index, clients | fitting({"found.webp": recovered}, BUDGET))


def _sheet(pixels: Tensor, quality: int) -> bytes:
    return sheet(to_images(pixels), quality)


def _pearson(table: pd.DataFrame, network: str) -> str:
    """Pearson's r of the policies' means with its interval, in words."""
    score, success = matrices(table, f"s_pri {network}", "psnr")
    low, high = agreement.correlation_interval(agreement.pearson, score, success)
    return f"{agreement.pearson(score.mean(1), success.mean(1)):+.2f} [{low:+.2f}, {high:+.2f}]".replace(
        "-", "−"
    )


# --- all policies -------------------------------------------------------------------------------------------


def atlas(
    study: Study,
    policies: Sequence[str],
    scores: Mapping[str, np.ndarray],
    gains: Mapping[str, np.ndarray],
    published: Sequence[str],
) -> dict:
    """Every policy's scores and gains, 16 bits each, by its number; the operations that they are
    made of; names.

    Args:
        policies: each function once, as `all_policies` writes it.
        scores, gains: of each policy, by what to call them on the axes.
        published: policies to mark.
    """
    number = {str(policy): number for number, policy in enumerate(all_policies())}
    ids = [index for index, canonical in enumerate(CANONICAL) if index == canonical]
    known = {str(Policy.parse(name).canonical()): name for name in published}
    there = set(policies)
    return {
        "where": _where(study),
        "ids": ids,
        "words": [spoken(Policy((i,)).names()) for i in ids],
        "canonical": [None if i is None else ids.index(i) for i in CANONICAL],
        "numbers": [number[policy] for policy in policies],
        "x": [_sixteen(name, np.asarray(values)) for name, values in scores.items()],
        "y": [_sixteen(name, np.asarray(values)) for name, values in gains.items()],
        "published": [{"id": own, "name": name} for own, name in known.items() if own in there],
        "start": "3-1-7",
    }


def _sixteen(name: str, values: np.ndarray) -> dict:
    """Numbers as whole ones from 0 to 65,535 between `low` and `high`, little-endian, in base64."""
    low = float(values.min())
    high = float(values.max())
    whole = np.round((values - low) / ((high - low) or 1) * 65_535).astype("<u2")
    return {
        "name": name,
        "low": brief(low),
        "high": brief(high),
        "bits": base64.b64encode(whole.tobytes()).decode(),
    }
