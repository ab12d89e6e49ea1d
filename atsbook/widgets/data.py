"""Data of the figures that a reader touches on the pages of claims 6 and 7, as JSON holds it."""

import base64
from collections.abc import Iterable, Mapping

import pandas as pd
import torch
from torch import Tensor

from atsbook.figures.sheets import brief, fitting, sheet, signed, spoken
from atsbook.figures.sheets import payload as with_files
from atsbook.findings import statistics as agreement
from atsbook.findings.compare import matrices
from atsbook.networks import dataset
from atsbook.runs.study import Study
from atsbook.store import Artifact
from atslib.clients.prepare import to_images
from atslib.policies.differentiable import SIGNED
from atslib.policies.policy import OPS, Policy, magnitude

EXAMPLE = 5  # the test image that shows what each operation does; of CIFAR-100 a tulip
SHOWN = 2  # attacked images behind a point of the scatter
BUDGET = 300_000  # bytes of the scatter's reconstructions


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
