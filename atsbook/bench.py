"""Speed measured against the plain loop in the same run; each benchmark is one dict, printed as one
JSON line.
"""

import contextlib
import ctypes
import re
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atsbook.evidence.audit import processor
from atsbook.pool.estimate import forward_flop
from atsbook.requests.timing import seconds
from atslib.attacks.labels import restore_labels
from atslib.attacks.matching import GradientMatching
from atslib.attacks.objective import Objective
from atslib.attacks.priors import total_variation
from atslib.attacks.through_policy import drawn, through
from atslib.clients.observe import Observed, ThreatModel, observe
from atslib.clients.updates import LocalTraining, observe_weights
from atslib.gradients.per_example import SameRules
from atslib.measures.batches import label_share
from atslib.models import Normalize, build_model, fast_layout, normalization_layer
from atslib.rng import rng
from atslib.scores.scores import gradsim_curve

# (model, members): the sizes that the book's speed table shows
ATTACK_SIZES = (("resnet20-4", 8), ("resnet20-1", 32), ("convnet-16", 8), ("convnet-64", 8))
# Networks that people have, "name@side"; all but the last are torchvision's. One image and eight.
OWN = ("resnet18@64", "resnet18@224", "mobilenet_v3_small@64", "mobilenet_v3_small@224", "vit@64")
OWN_SIZES = tuple((name, members) for name in OWN for members in (1, 8))
SCORE_SIZES = (("resnet20-4", 2), ("resnet20-1", 12))
ADAPTIVE_SIZES = (("lenet", 32), ("resnet20-1", 8))
LABEL_SIZES = (("lenet", 1_000),)
WEIGHT_SIZES = (("lenet", 4),)
FORM_SIZES = (("lenet", 100), ("convnet-16", 100), ("resnet20-1", 100))
# what is measured: its sizes, and what it is measured against
SIZES = {
    "attack": (ATTACK_SIZES + OWN_SIZES, "the plain loop"),
    "scores": (SCORE_SIZES, "the plain loop"),
    "adaptive": (ADAPTIVE_SIZES, "an attack without the policy"),
    "labels": (LABEL_SIZES, "the published rule"),
    "weights": (WEIGHT_SIZES, "an attack on the mean gradient"),
    "forms": (FORM_SIZES, "as many single images"),
}


def convolution_rate(device: torch.device) -> float:
    """FLOP/s of 3×3 convolutions of ResNet20-4's three widths and sizes in the fastest layout, the
    mean of three.
    """
    rates = []
    for width, side in ((64, 32), (128, 16), (256, 8)):
        x = fast_layout(torch.randn(32, width, side, side, device=device))
        kernel = torch.randn(width, width, 3, 3, device=device)
        flop = 2 * 32 * width * width * 9 * side * side
        with torch.no_grad():
            (taken,) = seconds(
                lambda x=x, kernel=kernel: F.conv2d(x, kernel, padding=1),
                device=device,
                clock=clock_of(device),
            )
            rates.append(flop / taken)
    return statistics.mean(rates)


def clock_of(device: torch.device) -> Callable[[], float]:
    """What time is measured by: on one thread of a CPU the processor's own, which other programs
    on the machine hardly change, else the wall's.
    """
    alone = device.type != "cuda" and torch.get_num_threads() == 1
    return time.process_time if alone else time.perf_counter


def plain_step(
    model: nn.Module,
    z: Tensor,
    labels: Tensor,
    target: list[Tensor],
    tv: float,
    *,
    ours: bool = True,
) -> Tensor:
    """The authors' way, one image at a time: two nested `autograd.grad` and the sign-free image
    gradient. Where the network is not `ours`, layers that torch does not differentiate twice have
    the engine's form, and only those.
    """
    parameters = list(model.parameters())
    normalize = normalization_layer(model)
    twice = contextlib.nullcontext() if ours else SameRules()
    if not ours:
        for function in (F.max_pool2d, F.batch_norm):  # torch's own are faster, and right for one
            twice.layers.pop(function)
    slopes = []
    for i in range(len(z)):
        one = z[i : i + 1].detach().requires_grad_()
        with twice:
            scores = model(normalize.inverse(one))
        loss = F.cross_entropy(scores, labels[i : i + 1])
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)
        dot = sum((g * t[i]).sum() for g, t in zip(gradients, target, strict=True))
        norms = sum(g.square().sum() for g in gradients) * sum(t[i].square().sum() for t in target)
        cost = 1 - dot / norms.sqrt() + tv * total_variation(one).sum()
        slopes.append(torch.autograd.grad(cost, one)[0])
    return torch.cat(slopes)


def attack(
    model_name: str = "resnet20-4", members: int = 8, *, device: str = "cpu", repeats: int = 5
) -> dict:
    """One iteration of `adam-cosine`: engine against plain loop.

    Returns:
        What `described` says; ms an image and iteration of both, their ratio; the machine's
        convolution rate in GFLOP/s, and the engine's share of it (7 forward passes' FLOP an
        iteration); the relative difference of the two image gradients in single precision; and by
        how many MB an iteration of either raises the memory that is occupied, None where the
        system does not tell.
    """
    place = torch.device(device)
    model, images, begin, labels = victims(model_name, members, place)
    seen = observe(model, images, labels)
    preset = GradientMatching()
    objective = Objective(seen, [preset] * members)
    z = normalization_layer(model)(begin)

    def engine() -> Tensor:
        rows = z.flatten(1).detach().requires_grad_()
        distance, penalty = objective(rows)
        return torch.autograd.grad((distance + penalty).sum(), rows)[0]

    def loop() -> Tensor:
        sent = list(objective.sent[0])
        return plain_step(model, z, labels, sent, preset.tv, ours="@" not in model_name)

    ours = engine().view_as(z)
    theirs = loop()
    memory = [raised_by(call, place) for call in (engine, loop)]
    engine_time, loop_time = seconds(
        engine, loop, device=place, repeats=repeats, clock=clock_of(place)
    )
    flop = 7 * forward_flop(model, images) * members
    rate = convolution_rate(place)
    return described("attack", place, model_name, members) | {
        "engine_ms": round(1e3 * engine_time / members, 3),
        "loop_ms": round(1e3 * loop_time / members, 3),
        "ratio": round(loop_time / engine_time, 2),
        "convolution_gflops": round(rate / 1e9),
        "convolution_share": round(flop / engine_time / rate, 2),
        "difference": float(f"{(ours - theirs).norm() / theirs.norm():.1e}"),
        "engine_mb": memory[0] if memory[0] is None else round(memory[0] / 1e6),
        "loop_mb": memory[1] if memory[1] is None else round(memory[1] / 1e6),
    }


def victims(
    model_name: str, members: int, place: torch.device
) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A network, random images and starts, (members, 3, side, side) in [0, 1], and labels."""
    name, _, side = model_name.partition("@")
    side = int(side or 32)
    if "@" in model_name:
        model = _of_others(name, side).to(place)
    else:
        model = build_model(name, 100, norm="cifar100", rng=rng(0)).to(place)
    images, begin = (
        torch.rand(members, 3, side, side, generator=rng(0, name)).to(place) for name in ("x", "z")
    )
    return model, images, begin, torch.arange(members, device=place) % 100


def _of_others(name: str, side: int) -> nn.Module:
    """A network of torchvision behind its normalization, or "vit", a small one; in eval mode."""
    import torchvision

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        if name == "vit":
            model = torchvision.models.VisionTransformer(
                side, side // 8, 4, 4, 64, 128, num_classes=100
            )
            model.heads.head.reset_parameters()  # zeros at first, which no gradient passes
        else:
            model = torchvision.models.get_model(name, num_classes=100)
    return nn.Sequential(Normalize([0.5] * 3, [0.25] * 3), model).eval()


def described(benchmark: str, place: torch.device, model_name: str, members: int) -> dict:
    """What every line says first: what was measured, on which device (a processor with what speed
    depends on), threads, model and members.
    """
    known = {"threads": torch.get_num_threads(), "model": model_name, "members": members}
    if place.type == "cuda":
        return {"benchmark": benchmark, "device": torch.cuda.get_device_name(place)} | known
    machine = {"device": "cpu", "processor": processor(), "features": features()}
    return {"benchmark": benchmark} | machine | known


def features() -> str:
    """The vectors that torch uses on this processor, such as "AVX512", and "bf16" where it
    multiplies such numbers.
    """
    vectors = torch.backends.cpu.get_cpu_capability()
    own = getattr(torch.cpu, "get_capabilities", dict)()  # not in every torch that is allowed
    has_bf16 = any(own.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return f"{vectors}, bf16" if has_bf16 else vectors


def raised_by(call: Callable[[], object], place: torch.device) -> int | None:
    """By how many bytes a call raises the memory that this process occupies, at its highest.

    On a CPU only Linux tells, where what was freed before is first given back; elsewhere None.
    """
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)
        before = torch.cuda.memory_allocated(place)
        call()
        return torch.cuda.max_memory_allocated(place) - before
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the highest so far is forgotten
    except (OSError, AttributeError):
        return None
    before = _occupied("VmRSS")
    call()
    return _occupied("VmHWM") - before


def _occupied(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)[1])


def plain_curve(
    model: nn.Module, images: Tensor, labels: Tensor, start: Tensor, points: int
) -> Tensor:
    """`gradsim_curve` the authors' way, a backward pass an image and point; (B, points)."""
    parameters = list(model.parameters())
    curves = []

    def gradient(one: Tensor, label: Tensor) -> Tensor:
        loss = F.cross_entropy(model(one[None]), label[None])
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])

    for image, label, noise in zip(images, labels, start, strict=True):
        target = gradient(image, label)
        mixtures = (
            j / (points - 1) * image + (1 - j / (points - 1)) * noise for j in range(points)
        )
        curves.append(
            torch.stack([F.cosine_similarity(gradient(x, label), target, dim=0) for x in mixtures])
        )
    return torch.stack(curves)


def scores(
    model_name: str = "resnet20-4", members: int = 1, *, device: str = "cpu", points: int = 21
) -> dict:
    """`gradsim_curve`, what the privacy score consists of: engine against plain loop.

    Returns:
        device, threads, model, members (images), points, gradients a second of both (of members ×
        points; the loop's second gradient of each image is not counted), their ratio, the engine's
        share of the machine's convolution rate (3 forward passes' FLOP a gradient), the largest
        difference of the two curves.
    """
    place = torch.device(device)
    model, images, start, labels = victims(model_name, members, place)
    ours = gradsim_curve(model, images, labels, points=points, start=start)
    theirs = plain_curve(model, images, labels, start, points)
    count = members * points
    times = seconds(
        lambda: gradsim_curve(model, images, labels, points=points, start=start),
        lambda: plain_curve(model, images, labels, start, points),
        device=place,
        repeats=3,
        clock=clock_of(place),
    )
    engine, loop = (count / taken for taken in times)
    return described("scores", place, model_name, members) | {
        "points": points,
        "engine_gradients": round(engine, 2),
        "loop_gradients": round(loop, 2),
        "ratio": round(engine / loop, 2),
        "convolution_share": round(
            3 * forward_flop(model, images) * engine / convolution_rate(place), 2
        ),
        "difference": float(f"{(ours - theirs).abs().max():.1e}"),
    }


def adaptive(
    model_name: str = "lenet", members: int = 16, *, device: str = "cpu", repeats: int = 9
) -> dict:
    """One iteration of `adam-cosine` through a policy, whose draws are known, against one without
    it.

    Returns:
        device, threads, model, members, policy, ms an image and iteration of both, and the share
        that the policy adds.
    """
    place = torch.device(device)
    policy = "3-1-7+43-18-18"
    model, images, begin, labels = victims(model_name, members, place)
    seen = observe(
        model, images, labels, defense=policy, threat=ThreatModel(defense="draws"), rng=0
    )
    views = (seen, through(seen, drawn(seen.knows)))
    z = normalization_layer(model)(begin)
    plain, behind = seconds(*(_step(view, z) for view in views), device=place, repeats=repeats)
    return described("adaptive", place, model_name, members) | {
        "policy": policy,
        "plain_ms": round(1e3 * plain / members, 3),
        "policy_ms": round(1e3 * behind / members, 3),
        "added": round(behind / plain - 1, 3),
    }


def labels(
    model_name: str = "lenet", members: int = 1_000, *, device: str = "cpu", repeats: int = 3
) -> dict:
    """`restore_labels` from stored gradients of batches of 64, ten classes, against the published
    rule.

    Returns:
        device, threads, model, members (batches), seconds for all of them by this project's rule
        and by the published one, and the share of labels that each told; the images are noise.
    """
    place = torch.device(device)
    batch = 64
    made = min(members, 20)
    model = build_model(model_name, 10, rng=rng(0)).to(place)
    pixels = torch.rand(made * batch, 3, 32, 32, generator=rng(0, "images")).to(place)
    true = torch.randint(10, (made, batch), generator=rng(0, "labels")).to(place)
    seen = observe(
        model, pixels, true.flatten(), threat=ThreatModel(labels="restored", batch=batch)
    )
    rows = torch.arange(members) % made
    seen = seen.take(rows)
    true = true[rows]

    def told(rule: str) -> float:
        return float(label_share(restore_labels(seen, rng=0, rule=rule), true).mean())

    ours, theirs = seconds(
        lambda: told("features"), lambda: told("published"), device=place, repeats=repeats
    )
    return described("labels", place, model_name, members) | {
        "batch": batch,
        "seconds": float(f"{ours:.3g}"),
        "published_seconds": float(f"{theirs:.3g}"),
        "share": round(told("features"), 3),
        "published_share": round(told("published"), 3),
    }


def weights(
    model_name: str = "lenet", members: int = 4, *, device: str = "cpu", repeats: int = 5
) -> dict:
    """One iteration on weights that clients trained for four steps of eight images: unrolled, and
    by their mean.

    Returns:
        device, threads, model, members (clients), images of each, local steps, ms an image and
        iteration by the mean gradient, and ms an image, iteration and local step where the steps
        are repeated.
    """
    place = torch.device(device)
    local = LocalTraining(epochs=4)
    batch = 8
    model, images, begin, labels = victims(model_name, members * batch, place)
    threat = ThreatModel(batch=batch)
    seen = observe_weights(model, images, labels, local=local, rng=0, threat=threat)
    z = normalization_layer(model)(begin)
    mean, unrolled = seconds(
        *(_step(seen, z, unroll=u) for u in (False, True)), device=place, repeats=repeats
    )
    return described("weights", place, model_name, members) | {
        "batch": batch,
        "local_steps": local.epochs,
        "mean_ms": round(1e3 * mean / len(images), 3),
        "unrolled_ms": round(1e3 * unrolled / len(images) / local.epochs, 3),
    }


def forms(
    model_name: str = "resnet20-1", members: int = 100, *, device: str = "cpu", repeats: int = 3
) -> dict:
    """One iteration on images that share one gradient, and on as many that have one each.

    Returns:
        device, threads, model, members (images), ms an image and iteration of one problem of all of
        them and of problems of one image each, and the peak memory in MB until then, of the process
        on a CPU.
    """
    place = torch.device(device)
    found = {}
    model, images, begin, labels = victims(model_name, members, place)
    for name, batch in (
        ("shared", members),
        ("single", 1),
    ):  # the smaller first: a process's peak never falls
        seen = observe(model, images, labels, threat=ThreatModel(batch=batch))
        call = _step(seen, normalization_layer(model)(begin))
        found[f"{name}_ms"] = round(
            1e3 * seconds(call, device=place, repeats=repeats)[0] / members, 3
        )
        found[f"{name}_peak_mb"] = round(
            (torch.cuda.max_memory_allocated(place) if begin.is_cuda else _peak()) / 1e6
        )
    return described("forms", place, model_name, members) | found


def _step(seen: Observed, z: Tensor, **fields: object) -> Callable[[], Tensor]:
    """One gradient of the cost of `adam-cosine`, with these fields, at the images `z` (B, C, H, W)."""
    objective = Objective(seen, [GradientMatching(**fields)] * len(seen))

    def one() -> Tensor:
        rows = z.reshape(len(seen), -1).detach().requires_grad_()
        return torch.autograd.grad(sum(objective(rows)).sum(), rows)[0]

    return one


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
