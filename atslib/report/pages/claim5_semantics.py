"""Claim 5: policies hide what shallow layers see and keep what deep layers see (paper, Figure 6)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from atslib.attacks.engine import frame_steps
from atslib.clients.prepare import to_images
from atslib.gradients.problems import problem_gradients
from atslib.measures.statistics import interval, paired
from atslib.report.compare import judge
from atslib.report.reported import policy_label, reported
from atslib.report.result import NO_POLICY, Result, Verdict
from atslib.report.units.networks import device_of, network, trained
from atslib.report.units.settings import Settings
from atslib.report.units.table1 import HYBRID, RANDOM, SEARCHED, on_network
from atslib.report.units.tables import attack_rows, attacked_facts, label, provenance
from atslib.report.units.units import CHUNK, FRAMES, AttackUnit, attack_unit, attacked
from atslib.report.verdicts import cannot_tell, guards
from atslib.store import Artifact, Store

POLICIES = ("", RANDOM, SEARCHED[0], HYBRID)
JUDGED = (SEARCHED[0], HYBRID)
# parameter → the replication's name of the layer in its Figure 5: two shallow layers and two deep ones
PUBLISHED = {
    "1.stage1_0.conv1.weight": "layers.3.0.conv1(stage1 block0 conv1)",
    "1.stage1_1.conv1.weight": "layers.3.1.conv1(stage1 block1 conv1)",
    "1.stage3_1.conv2.weight": "layers.5.1.conv2(stage3 block1 conv2)",
    "1.stage3_2.conv2.weight": "layers.5.2.conv2(stage3 block2 conv2)",
}


def units(settings: Settings) -> dict[str, AttackUnit]:
    """The page's attacks by the policy's label; in the regime `initial` on the untrained network of the settings."""
    own = on_network(settings, settings.model)
    return {label(policy): attack_unit(own, policy, frames=FRAMES) for policy in POLICIES}


def convolutions(model: nn.Module) -> list[str]:
    """Names of the convolutions' weights, from the input on."""
    return [name for name, p in model.named_parameters() if p.ndim == 4]


@torch.no_grad()
def layer_similarity(model: nn.Module, frames: Tensor, target: Tensor, labels: Tensor) -> Tensor:
    """Cosine of each convolution's gradient at each iterate to its gradient at the target.

    Args:
        model: in eval mode, as victim and attacker run it.
        frames: (F, B, C, H, W) floats in [0, 1]; `target` is (B, C, H, W), `labels` (B,).
    Returns:
        (L, F, B) in [-1, 1], the layers of `convolutions`; 1 is the same direction. 0 where a gradient vanishes.
    """
    names = [name for name, _ in model.named_parameters()]
    kept = [names.index(name) for name in convolutions(model)]

    def directions(images: Tensor, classes: Tensor) -> list[Tensor]:
        gradients = problem_gradients(model, images[:, None], classes[:, None])
        return [nn.functional.normalize(gradients[i].flatten(1), dim=1) for i in kept]

    rows = []
    for images, truth, classes in zip(frames.split(CHUNK, 1), target.split(CHUNK), labels.split(CHUNK), strict=True):
        aim = directions(truth, classes)
        steps = [[(a * b).sum(1) for a, b in zip(directions(x, classes), aim, strict=True)] for x in images]
        rows.append(torch.stack([torch.stack(step) for step in steps], 1))
    return torch.cat(rows, 2)


def similarities(unit: AttackUnit, store: Store, device: torch.device) -> Artifact:
    """`gradsim` (L, F, B) of the unit's attack, see `layer_similarity`."""

    def compute(state: object) -> dict[str, Tensor]:
        attack, (model, _) = attacked(unit, store, device), trained(unit.model, store, device)
        frames, target, labels = (attack[n].to(device) for n in ("frames", "target", "labels"))
        return {"gradsim": layer_similarity(model, frames, to_images(target), labels)}

    return store.get("layers", unit, compute, label=f"similarity by layer, {unit.policy or 'none'}")


def third(position: int, layers: int) -> str:
    """Which third of the layers, counted from the input."""
    return ("shallow", "middle", "deep")[3 * position // layers]


def layer_rows(gradsim: Tensor, names: list[str], policy: str) -> pd.DataFrame:
    """One row per layer and image at the last iterate."""
    last = gradsim[:, -1].double().numpy()
    layers, images = last.shape
    return pd.DataFrame(
        {
            "policy": policy,
            "layer": np.repeat(names, images),
            "position": np.repeat(range(layers), images),
            "third": np.repeat([third(i, layers) for i in range(layers)], images),
            "image": np.tile(range(images), layers),
            "gradsim": last.ravel(),
        }
    )


def group_rows(gradsim: Tensor, steps: list[int], policy: str) -> pd.DataFrame:
    """One row per iterate, image and group of layers: the shallow and the deep third, and the very first layer."""
    layers, _, images = gradsim.shape
    groups = {name: [i for i in range(layers) if third(i, layers) == name] for name in ("shallow", "deep")}
    parts = []
    for name, rows in ({"first": [0]} | groups).items():
        values = gradsim[rows].double().mean(0).numpy()
        keys = {"policy": policy, "layers": name, "iteration": np.repeat(steps, images)}
        parts.append(pd.DataFrame(keys | {"image": np.tile(range(images), len(steps)), "gradsim": values.ravel()}))
    return pd.concat(parts, ignore_index=True)


def radial_power(images: Tensor) -> Tensor:
    """Power of each image's spectrum averaged over rings of equal frequency and over channels.

    Args:
        images: (B, C, H, W).
    Returns:
        (B, min(H, W) // 2 + 1), mean squared amplitude at 0, 1, … cycles an image. Entry 0 is the squared mean
        of the pixels; the corners beyond the highest frequency of a row are left out.
    """
    height, width = images.shape[-2:]
    power = (torch.fft.fft2(images.double()) / (height * width)).abs().square().mean(1)
    y, x = (torch.fft.fftfreq(n, 1 / n) for n in (height, width))
    ring = torch.hypot(y[:, None], x[None]).round().long().flatten()
    rings = min(height, width) // 2 + 1
    inside = ring < rings
    sums = power.new_zeros(len(power), rings).index_add_(1, ring[inside], power.flatten(1)[:, inside])
    return sums / torch.bincount(ring[inside], minlength=rings)


def spectra(unit: AttackUnit, store: Store, device: torch.device) -> Artifact:
    """`error_power`, of reconstruction minus target, and `target_power`, its own, (B, frequencies) of an attack."""

    def compute(state: object) -> dict[str, Tensor]:
        attack = attacked(unit, store, device)
        target = to_images(attack["target"], torch.float64)
        error = attack["reconstruction"].double() - target
        return {"error_power": radial_power(error), "target_power": radial_power(target)}

    return store.get("spectrum", unit, compute, label=f"spectrum of the error, {unit.policy or 'none'}")


def spectrum_rows(spectrum: Artifact, policy: str) -> pd.DataFrame:
    """One row per image and frequency: `error` and `target` of `spectra`, and their ratio in dB."""
    error, own = spectrum["error_power"], spectrum["target_power"]
    images, rings = error.shape
    keys = {"policy": policy, "image": np.repeat(range(images), rings), "frequency": np.tile(range(rings), images)}
    table = pd.DataFrame(keys | {"error": error.flatten().numpy(), "target": own.flatten().numpy()})
    return table.assign(ratio_db=10 * np.log10(table["error"].clip(lower=1e-20) / table["target"].clip(lower=1e-20)))


SEMANTICS_RULE = (
    "Reproduced: at the end of the attack the gradient's similarity in the shallow third of the convolutions is lower "
    "with the searched policy and with the hybrid than with none, on the same images (95 % interval of the mean paired "
    "difference below 0), and it falls by more than in the deep third (interval of the difference of both changes "
    "below 0). Partly: the shallow third falls for one of the two policies, or the other condition fails. Not "
    "reproduced: it falls for neither. Cannot tell: undefended attacks do not beat the best guess of somebody who "
    "knows the policy and sees no gradient, or fewer than 30 images. Not measured: fewer than two."
)


def semantics_verdict(thirds: pd.DataFrame, attacks: pd.DataFrame, searched: Sequence[str]) -> Verdict:
    """Claim 5 by `SEMANTICS_RULE`.

    Args:
        thirds: final similarities, one row per policy and image: `shallow`, `deep` and their difference `contrast`.
        attacks: with `policy`, `image`, `psnr` and `floor_policy`.
    """
    change = {name: paired(thirds, NO_POLICY, name).loc[list(searched)] for name in ("shallow", "deep", "contrast")}
    if change["shallow"]["n"].min() < 2:
        return Verdict("not measured", "fewer than two images can be compared", SEMANTICS_RULE)
    here = "; ".join(
        f"{p}: shallow {change['shallow'].loc[p, 'mean']:+.2f}, deep {change['deep'].loc[p, 'mean']:+.2f}"
        for p in searched
    )
    lower = [p for p in searched if change["shallow"].loc[p, "high"] < 0]
    if not lower:
        reason = f"the similarity in shallow layers falls for no searched policy ({here})"
        return cannot_tell(judge(SEMANTICS_RULE, reason, here, refuted=True), guards(attacks))
    faults = [f"it does not fall for {p}" for p in searched if p not in lower]
    faults += [f"it falls no more than in deep layers for {p}" for p in lower if change["contrast"].loc[p, "high"] >= 0]
    verdict = judge(SEMANTICS_RULE, f"the similarity in shallow layers falls ({here})", here, faults)
    return cannot_tell(verdict, guards(attacks))


def run(settings: Settings, store: Store) -> Result:
    """Attack, and look at the gradient layer by layer and at the error frequency by frequency.

    Tables: `attacks`, `layers` (final similarity, one row per policy, layer and image), `curve` (along the attack)
    and `spectrum`.
    """
    by_policy, parts = units(settings), {"layers": [], "curve": [], "spectrum": []}
    device = device_of(settings.device)
    attacks, sheets = attack_rows(by_policy, ["policy"], settings, store)
    for policy, unit in by_policy.items():
        gradsim = similarities(unit, store, device)["gradsim"]
        parts["layers"].append(layer_rows(gradsim, convolutions(network(unit.model)), policy))
        parts["curve"].append(group_rows(gradsim, frame_steps(unit.frames, unit.attack.steps), policy))
        parts["spectrum"].append(spectrum_rows(spectra(unit, store, device), policy))
    tables = {"attacks": attacks} | {name: pd.concat(rows, ignore_index=True) for name, rows in parts.items()}
    verdict = semantics_verdict(thirds(tables["layers"]), attacks, JUDGED)
    facts = provenance(settings, sheets[NO_POLICY]) | attacked_facts(by_policy[NO_POLICY])
    return Result("claim5_semantics", tables, facts, verdict, sheets)


def thirds(layers: pd.DataFrame) -> pd.DataFrame:
    """Final similarity by policy and image: `first` layer, `shallow` and `deep` third, and shallow minus deep."""
    keys = ["policy", "image"]
    table = layers.groupby([*keys, "third"], sort=False)["gradsim"].mean().unstack()
    table["first"] = layers[layers["position"] == 0].set_index(keys)["gradsim"]
    return table.assign(contrast=table["shallow"] - table["deep"]).reset_index()


def comparison(result: Result) -> pd.DataFrame:
    """One row per layer and policy: mean final similarity with its interval, and the replication's single image.

    The layers are those that the replication names, where the network has them; else the two first and two last.
    """
    layers = result.tables["layers"]
    names = list(dict.fromkeys(layers["layer"]))
    chosen = [name for name in PUBLISHED if name in names] or [*names[:2], *names[-2:]]
    figure = reported(table_or_figure="Figure 5", source="replication")
    rows = []
    for (layer, policy), values in layers.groupby(["layer", "policy"], sort=False)["gradsim"]:
        if layer in chosen:
            low, high = interval(values)
            named = figure["metric"].str.removeprefix("gradsim_final:") == PUBLISHED.get(layer)
            same = figure["policy_or_defense"].map(policy_label) == policy
            ours = {"n": len(values), "mean": values.mean(), "low": low, "high": high}
            ours["replication, image 5"] = figure[named & same]["value"].mean()
            rows.append({"layer": layer.removesuffix(".weight"), "policy": policy} | ours)
    order = {name.removesuffix(".weight"): i for i, name in enumerate(chosen)}
    table = pd.DataFrame(rows).sort_values("layer", key=lambda column: column.map(order), kind="stable")
    return table.set_index(["layer", "policy"])


def differences(result: Result) -> pd.DataFrame:
    """Each policy minus none on the same images, one row per policy and group of layers; below 0: less similar."""
    table = thirds(result.tables["layers"])
    names = {"first": "first layer", "shallow": "shallow third", "deep": "deep third", "contrast": "shallow - deep"}
    parts = {text: paired(table, NO_POLICY, name) for name, text in names.items()}
    return pd.concat(parts, names=["layers"]).loc[list(parts)]


def frequencies(result: Result) -> pd.DataFrame:
    """Change of the error over the target in dB, each policy minus none, of coarse and of fine frequencies."""
    table = result.tables["spectrum"]
    parts = {"coarse, 1 to 4": table["frequency"].between(1, 4), "fine, 8 and above": table["frequency"] >= 8}
    rows = {}
    for name, chosen in parts.items():
        mean = table[chosen].groupby(["policy", "image"], sort=False)["ratio_db"].mean().reset_index()
        rows[name] = paired(mean, NO_POLICY, "ratio_db")
    return pd.concat(rows, names=["frequencies"])


def starts_and_ends(result: Result) -> pd.DataFrame:
    """Mean similarity from noise, before any step, and at the end, one row per policy and group of layers."""
    curve = result.tables["curve"]
    mean = curve.groupby(["layers", "policy", "iteration"], sort=False)["gradsim"].mean().unstack()
    return pd.DataFrame({"from noise": mean[mean.columns.min()], "at the end": mean[mean.columns.max()]})
