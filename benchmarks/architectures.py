"""What an audit makes of architectures that people have, and whether their gradients are right.

    pip install timm transformers monai einops
    python benchmarks/architectures.py

Every network has random weights and is asked twice, in a process beside this one. *Gradients*: those
that `observe` shares of single images and of pairs, in eval and in train mode, beside plain autograd of torch
on another copy that the same seed built; and the slope of a single gradient along a fixed direction, which
attacks follow. Max-pooling takes one of the pixels that are all but equal by a rule of its own, see
`atslib.models.max_pool`, so that single precision can differ by percents; then double precision is asked too,
and decides. *Audit*: `atsaudit.audit`, the untrained network as its own control. Answers are kept one by one in
`--out`, so that a killed run goes on; an audit that could not tell is asked again where `--budget` is larger than what
it had. At the end the table of the book's page *Audit your own* is written anew from all that is kept.
"""

import argparse
import copy
import dataclasses
import importlib.metadata
import json
import multiprocessing
import re
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import atsaudit
import atslib
from atsaudit.run_audit import networks_of
from atsaudit.work import Work
from atslib.clients.observe import observe
from atslib.clients.view import ThreatModel
from atslib.errors import AtsError
from atslib.files import write_atomically
from atslib.gradients.problems import flatten, problem_gradients
from atslib.models import as_client, shared_parameters

CLASSES = 4
NORMALIZE = ([0.5] * 3, [0.25] * 3)
CLOSE = 1e-5  # relative difference of gradients that counts as equal
HERE = Path(__file__).resolve()
PAGE = HERE.parents[1] / "book" / "audit_your_own.md"
MARK = "<!-- architectures -->"
PACKAGES = ("torch", "torchvision", "timm", "transformers", "monai")


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A network that is tried.

    Attributes:
        build: makes it, with weights of torch's own generator.
        side: of its images, in pixels.
    """

    build: Callable[[], nn.Module]
    side: int


def of_timm(name: str, side: int, **settings: object) -> Architecture:
    def build() -> nn.Module:
        import timm  # after atslib, which lets torchvision be imported

        return timm.create_model(name, num_classes=CLASSES, **settings)

    return Architecture(build, side)


def of_torchvision(name: str, side: int, **settings: object) -> Architecture:
    def build() -> nn.Module:
        from torchvision import models

        return models.get_model(name, num_classes=CLASSES, **settings)

    return Architecture(build, side)


def of_transformers(name: str, side: int, **settings: object) -> Architecture:
    """`name` as in `<name>Config` and `<name>ForImageClassification`."""

    def build() -> nn.Module:
        import transformers

        config = getattr(transformers, f"{name}Config")(num_labels=CLASSES, **settings)
        return getattr(transformers, f"{name}ForImageClassification")(config)

    return Architecture(build, side)


def of_monai(name: str, side: int, **settings: object) -> Architecture:
    def build() -> nn.Module:
        import monai.networks.nets as nets

        return getattr(nets, name)(**settings)

    return Architecture(build, side)


def torchvision_transformer(side: int) -> Architecture:
    """A small one, of which `get_model` knows none."""

    def build() -> nn.Module:
        from torchvision.models import VisionTransformer

        return VisionTransformer(side, 8, 2, 3, 48, 96, num_classes=CLASSES)

    return Architecture(build, side)


BLOCKS = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 48, "num_heads": 3}
VIT = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3}
PATCHES = {"image_size": 32, "patch_size": 8} | VIT
MLP = PATCHES | {"intermediate_size": 96}
SMALL = {"img_size": 64, "depths": (1, 1, 1, 1), "embed_dim": 24, "num_heads": (1, 2, 4, 8)}
ARCHITECTURES = {
    # transformers, small ones of each family
    "transformers ViT": of_transformers("ViT", 32, **MLP),
    "transformers DeiT": of_transformers("DeiT", 32, **MLP),
    "transformers BEiT": of_transformers("Beit", 32, **MLP),
    "transformers Data2Vec": of_transformers("Data2VecVision", 32, **MLP),
    "transformers Dinov2": of_transformers("Dinov2", 32, **PATCHES),
    "transformers Dinov2 with registers": of_transformers("Dinov2WithRegisters", 32, **PATCHES),
    "transformers ViT-MSN": of_transformers("ViTMSN", 32, **MLP),
    "transformers ResNet": of_transformers(
        "ResNet", 64, embedding_size=16, hidden_sizes=[16, 32, 48], depths=[1, 1, 1], layer_type="basic"
    ),
    "transformers RegNet": of_transformers(
        "RegNet", 64, embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1],
        groups_width=8,
    ),
    "transformers BiT": of_transformers("Bit", 64, num_groups=4, embedding_size=32, hidden_sizes=[32, 64], depths=[1, 1]),
    "transformers ConvNeXt": of_transformers(
        "ConvNext", 64, hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 1, 1]
    ),
    "transformers ConvNeXtV2": of_transformers(
        "ConvNextV2", 64, hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 1, 1]
    ),
    "transformers Swin": of_transformers(
        "Swin", 32, image_size=32, patch_size=2, embed_dim=16, depths=[2, 1, 1], num_heads=[1, 2, 4],
        window_size=4,
    ),
    "transformers Swinv2": of_transformers(
        "Swinv2", 32, image_size=32, patch_size=2, embed_dim=16, depths=[2, 1, 1],
        num_heads=[1, 2, 4], window_size=4,
    ),
    "transformers PoolFormer": of_transformers(
        "PoolFormer", 64, hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 1, 1]
    ),
    "transformers Segformer": of_transformers(
        "Segformer", 64, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1]
    ),
    "transformers PVT": of_transformers(
        "Pvt", 64, image_size=64, depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 80, 128]
    ),
    "transformers CvT": of_transformers(
        "Cvt", 64, depth=[1, 2, 3], embed_dim=[16, 48, 96], num_heads=[1, 3, 6]
    ),
    "transformers FocalNet": of_transformers(
        "FocalNet", 64, image_size=64, embed_dim=24, depths=[1, 1, 1, 1]
    ),
    "transformers I-JEPA": of_transformers("IJepa", 32, **MLP),
    "transformers SigLIP": of_transformers("Siglip", 32, vision_config=MLP),
    "transformers ImageGPT": of_transformers("ImageGPT", 32, n_embd=48, n_layer=2, n_head=2),
    # MONAI
    "monai ViT": of_monai(
        "ViT", 32, in_channels=3, img_size=(32, 32), patch_size=(8, 8), hidden_size=48, mlp_dim=96,
        num_layers=2, num_heads=3, classification=True, num_classes=CLASSES, spatial_dims=2,
        post_activation="none",
    ),
    "monai Classifier": of_monai(
        "Classifier", 32, in_shape=(3, 32, 32), classes=CLASSES, channels=(8, 16), strides=(2, 2),
        last_act=None,
    ),
    "monai DenseNet": of_monai(
        "DenseNet", 64, spatial_dims=2, in_channels=3, out_channels=CLASSES, block_config=(2, 2, 2),
        init_features=16, growth_rate=8,
    ),
    "monai BasicUNet": of_monai(
        "BasicUNet", 32, spatial_dims=2, in_channels=3, out_channels=CLASSES
    ),
    # timm, by its own small networks of families, then by the smallest of a family
    "timm test_resnet": of_timm("test_resnet", 64),
    "timm test_byobnet": of_timm("test_byobnet", 64),
    "timm test_efficientnet": of_timm("test_efficientnet", 64),
    "timm test_efficientnet_gn": of_timm("test_efficientnet_gn", 64),
    "timm test_efficientnet_ln": of_timm("test_efficientnet_ln", 64),
    "timm test_efficientnet_evos": of_timm("test_efficientnet_evos", 64),
    "timm test_nfnet": of_timm("test_nfnet", 64),
    "timm test_convnext": of_timm("test_convnext", 64),
    "timm test_convnext2": of_timm("test_convnext2", 64),
    "timm test_mambaout": of_timm("test_mambaout", 64),
    "timm test_vit": of_timm("test_vit", 64, img_size=64),
    "timm test_vit2 (registers)": of_timm("test_vit2", 64, img_size=64),
    "timm test_vit_relpos": of_timm("test_vit_relpos", 64, img_size=64),
    "timm test_coatnet": of_timm("test_coatnet", 64, img_size=64),
    "timm test_maxvit": of_timm("test_maxvit", 64, img_size=64),
    "timm deit, distilled (2 blocks)": of_timm("deit_tiny_distilled_patch16_224", 32, **BLOCKS),
    "timm deit3 (2 blocks)": of_timm("deit3_small_patch16_224", 32, **BLOCKS),
    "timm vit, no class token (2 blocks)": of_timm("vit_base_patch16_gap_224", 32, **BLOCKS),
    "timm vit of SigLIP (2 blocks)": of_timm("vit_base_patch16_siglip_gap_224", 32, **BLOCKS),
    "timm flexivit (2 blocks)": of_timm("flexivit_small", 32, **BLOCKS),
    "timm eva02 (2 blocks)": of_timm(
        "eva02_tiny_patch14_224", 56, img_size=56, depth=2, embed_dim=48, num_heads=3
    ),
    "timm beit (2 blocks)": of_timm(
        "beit_base_patch16_224", 64, img_size=64, embed_dim=48, num_heads=3, depth=2
    ),
    "timm cait (2 blocks)": of_timm("cait_xxs24_224", 64, img_size=64, embed_dim=48, num_heads=3, depth=2),
    "timm convit (3 blocks)": of_timm(
        "convit_tiny", 64, img_size=64, depth=3, embed_dim=48, num_heads=3, local_up_to_layer=2
    ),
    "timm xcit (2 blocks)": of_timm(
        "xcit_nano_12_p8_224", 64, img_size=64, depth=2, embed_dim=48, num_heads=3
    ),
    "timm naflexvit (2 blocks)": of_timm(
        "naflexvit_base_patch16_gap", 64, embed_dim=48, num_heads=3, depth=2
    ),
    "timm vit, dynamic size": of_timm(
        "vit_tiny_patch16_224", 48, img_size=64, patch_size=8, depth=2, embed_dim=48, num_heads=3,
        dynamic_img_size=True,
    ),
    "timm swin (small)": of_timm("swin_tiny_patch4_window7_224", 64, window_size=2, **SMALL),
    "timm swinv2 (small)": of_timm("swinv2_tiny_window8_256", 64, window_size=2, **SMALL),
    "timm lcnet_035": of_timm("lcnet_035", 64),
    "timm mobilenetv2_035": of_timm("mobilenetv2_035", 64),
    "timm mobilenetv3_small_050": of_timm("mobilenetv3_small_050", 64),
    "timm mobilenetv4_conv_small_035": of_timm("mobilenetv4_conv_small_035", 64),
    "timm tinynet_e": of_timm("tinynet_e", 64),
    "timm mobilevit_xxs": of_timm("mobilevit_xxs", 64),
    "timm ghostnet_050": of_timm("ghostnet_050", 64),
    "timm repghostnet_050": of_timm("repghostnet_050", 64),
    "timm dla46_c": of_timm("dla46_c", 64),
    "timm edgenext_xx_small": of_timm("edgenext_xx_small", 64),
    "timm tiny_vit (small)": of_timm("tiny_vit_5m_224", 64, img_size=64, depths=(1, 1, 1, 1)),
    "timm efficientvit_m0": of_timm("efficientvit_m0", 128, img_size=128),
    "timm levit_128s": of_timm("levit_128s", 224),
    "timm efficientformerv2_s0": of_timm("efficientformerv2_s0", 224),
    "timm starnet_s1": of_timm("starnet_s1", 64),
    "timm pvt_v2_b0": of_timm("pvt_v2_b0", 64),
    "timm resnetv2_18": of_timm("resnetv2_18", 64),
    # torchvision
    "torchvision VisionTransformer (2 layers)": torchvision_transformer(32),
    "torchvision squeezenet1_1": of_torchvision("squeezenet1_1", 64),
    "torchvision shufflenet_v2_x0_5": of_torchvision("shufflenet_v2_x0_5", 64),
    "torchvision mobilenet_v3_small": of_torchvision("mobilenet_v3_small", 64),
    "torchvision mnasnet0_5": of_torchvision("mnasnet0_5", 64),
    "torchvision resnet18": of_torchvision("resnet18", 64),
    "torchvision mobilenet_v2": of_torchvision("mobilenet_v2", 64),
    "torchvision efficientnet_b0": of_torchvision("efficientnet_b0", 64),
    "torchvision regnet_y_400mf": of_torchvision("regnet_y_400mf", 64),
    "torchvision googlenet": of_torchvision("googlenet", 64, init_weights=True),
    "torchvision densenet121": of_torchvision("densenet121", 64),
    "torchvision inception_v3": of_torchvision("inception_v3", 96, init_weights=False),
    "torchvision swin_t": of_torchvision("swin_t", 64),
}  # fmt: skip


def built(name: str) -> nn.Module:
    """The network, with the weights that every call gives it.

    Dropout and dropped paths are set to 0, as two copies could not be compared; nothing else is changed.
    """
    torch.manual_seed(0)
    model = ARCHITECTURES[name].build()
    for layer in model.modules():
        for attribute in ("p", "drop_prob", "drop_path_rate", "attn_drop_rate", "attn_drop_prob"):
            if isinstance(getattr(layer, attribute, None), float) and (
                attribute != "p" or isinstance(layer, nn.modules.dropout._DropoutNd)
            ):
                setattr(layer, attribute, 0.0)
        if type(getattr(layer, "attn_drop", None)) is float:
            layer.attn_drop = 0.0
    return model


def photographs(count: int, side: int) -> Tensor:
    """(N, 3, S, S) between 0 and 1: coloured noise whose spectrum falls as that of photographs does.

    No area is flat: where neighbours are equal, torch's own gradient is one of several.
    """
    stream = torch.Generator().manual_seed(7)
    noise = torch.randn(count, 3, side, side, generator=stream)
    down = torch.fft.fftfreq(side)[:, None].square()
    along = torch.fft.rfftfreq(side)[None].square()
    falling = 1 / (down + along).sqrt().clamp_min(1 / side)
    shades = torch.fft.irfft2(torch.fft.rfft2(noise) * falling, s=(side, side))
    shades = shades + 0.7 * shades.mean(1, keepdim=True)  # channels of photographs go together
    return torch.sigmoid(shades / shades.std((1, 2, 3), keepdim=True))


class WrittenOut(TorchFunctionMode):
    """Batch normalization in elementary operations, since torch's own can be wrong for one image; see
    `findings/torch_batchnorm_one_image_tokens.sh`.
    """

    def __torch_function__(
        self, function: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ):
        if function is F.batch_norm:
            return self.normalized(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))

    @staticmethod
    def normalized(
        x: Tensor,
        mean: Tensor | None,
        variance: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        column = (1, -1, *[1] * (x.ndim - 2))
        if training:
            if x.numel() == x.shape[1]:
                raise ValueError("Expected more than 1 value per channel when training")
            axes = [0, *range(2, x.ndim)]
            mean = x.mean(axes)
            variance = (x - mean.view(column)).square().mean(axes)
        out = (x - mean.view(column)) / (variance.view(column) + eps).sqrt()
        if weight is not None:
            out = out * weight.view(column)
        return out if bias is None else out + bias.view(column)


def scores_of(output: object) -> Tensor:
    """The class scores, as the library of a network hands them out."""
    if isinstance(output, Tensor):
        return output
    return output.logits if hasattr(output, "logits") else output[0]


def of_torch(
    model: nn.Module, images: Tensor, labels: Tensor, along: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Plain autograd: the gradient of one problem as (P,), and its slope in the images along a direction."""
    model = copy.deepcopy(model)
    mean, std = (torch.tensor(part, dtype=images.dtype).view(-1, 1, 1) for part in NORMALIZE)
    images = images.clone().requires_grad_(along is not None)
    loss = F.cross_entropy(scores_of(model((images - mean) / std)), labels)
    wanted = [each for each in model.parameters() if each.requires_grad]
    parts = torch.autograd.grad(loss, wanted, allow_unused=True, create_graph=along is not None)
    pairs = zip(parts, wanted, strict=True)
    row = torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])
    slope = None if along is None else torch.autograd.grad(row @ along, images)[0].detach()
    return row.detach(), slope


def far(ours: Tensor, theirs: Tensor) -> float:
    """The largest relative difference of two rows (N, ...)."""
    gap = (ours - theirs).flatten(1).norm(dim=1)
    return float((gap / theirs.flatten(1).norm(dim=1).clamp_min(1e-30)).max())


def differences(name: str, mode: str, number: torch.dtype) -> dict[str, object]:
    """How far gradients are off torch's, or what either says, by what is compared."""
    side = ARCHITECTURES[name].side
    images = photographs(4, side).to(number)
    labels = torch.arange(4) % CLASSES
    fresh = built(name).to(number).train(mode == "train")
    pixels = (255 * images).round().byte()
    model = networks_of(built(name).to(number), None, NORMALIZE, pixels, 0, None)[0]["given"]
    told: dict[str, object] = {}
    for size in (1, 2):
        few = slice(2 * size)
        problems = list(zip(images[few].split(size), labels[few].split(size), strict=True))
        try:
            with WrittenOut():
                theirs = torch.stack([of_torch(fresh, *each)[0] for each in problems])
        except Exception as error:
            theirs = f"{type(error).__name__}: {error}"[:120]
        try:
            threat = ThreatModel(batch=size, victim=mode)
            ours = observe(model, images[few], labels[few], threat=threat, rng=atslib.rng(0))
            ours = ours.updates[0].gradients
        except AtsError as error:
            ours = str(error)
        if isinstance(ours, Tensor) and isinstance(theirs, Tensor):
            told[f"{size}"] = far(ours, theirs)
        else:
            told[f"{size}"] = {
                "ours": "gradients" if isinstance(ours, Tensor) else ours,
                "torch": "gradients" if isinstance(theirs, Tensor) else theirs,
            }
    if mode == "eval" and isinstance(told["1"], float):
        told |= slopes(fresh, model, images[:1], labels[:1])
    return told


def slopes(fresh: nn.Module, model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, object]:
    """How far the slope of a gradient in the image is off torch's, where torch has one."""
    count = sum(each.numel() for each in shared_parameters(model).values())
    along = torch.randn(count, generator=torch.Generator().manual_seed(1)).to(images)
    try:
        with WrittenOut():
            _, theirs = of_torch(fresh, images, labels, along)
    except RuntimeError as error:
        return {"slope": {"torch": str(error)[:120]}}
    client = as_client(model, "eval")
    own = images.clone()[None].requires_grad_()
    try:
        row = flatten(problem_gradients(client, own, labels[None]))
    except AtsError as error:
        return {"slope": {"ours": str(error), "torch": "a slope"}}
    (ours,) = torch.autograd.grad(row[0] @ along, own)
    if not theirs.isfinite().all():
        return {"slope": {"torch": "not finite", "ours": bool(ours.isfinite().all())}}
    return {"slope": far(ours.detach()[0], theirs)}


def gradients_of(name: str) -> dict[str, object]:
    """`differences` in both modes, in single precision, and in double where single is not close."""
    told: dict[str, object] = {}
    for mode in ("eval", "train"):
        told[mode] = differences(name, mode, torch.float32)
        if any(isinstance(off, float) and not off < CLOSE for off in told[mode].values()):
            try:
                told[f"{mode}, double"] = differences(name, mode, torch.float64)
            except RuntimeError as error:  # it mixes in single precision itself
                told[f"{mode}, double"] = {"torch": str(error)[:120]}
    return told


def audit_of(name: str, budget: float) -> dict[str, object]:
    """What the audit says of the untrained network, of 48 images of four classes."""
    images = photographs(48, ARCHITECTURES[name].side)
    model = built(name)
    try:
        report = atsaudit.audit(
            model, images, torch.arange(48) % CLASSES, untrained=model, normalize=NORMALIZE,
            class_names=tuple("abcd"), batch=1, budget=budget,
        )  # fmt: skip
    except AtsError as error:
        return {"outcome": "refused", "says": [str(error)]}
    row = report.control
    works = row is not None and row.works and not report.doubts
    return {
        "outcome": "audited" if works else "cannot tell",
        "says": report.doubts,
        "notes": list(report.notes),
        "found": row and row.found,
        "of": row and row.images,
        "chance": row and row.chance,
        "attack": row and row.attack,
        "gain": row and row.gain,
    }


def asked(task: str, name: str, budget: float) -> dict[str, object]:
    """The answer of one task in this process; a raw error is a fault, and told with its end."""
    began = time.monotonic()
    try:
        told = gradients_of(name) if task == "gradients" else audit_of(name, budget)
    except AtsError as error:
        told = {"outcome": "refused", "says": [str(error)]}
    except Exception as error:
        lines = traceback.format_exc().strip().splitlines()
        told = {"outcome": "fault", "says": [f"{type(error).__name__}: {error}"[:400], *lines[-9:]]}
    return told | {"budget": budget, "seconds": round(time.monotonic() - began, 1)}


def answering(pipe: Connection, most: float) -> None:
    """Answer what comes through the pipe, one question after the other.

    All time is that of this process on the processor, so that other work on the machine takes none of an
    audit's budget.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    time.monotonic = time.process_time
    Work.__init__.__kwdefaults__["clock"] = time.process_time
    while True:
        question = pipe.recv()
        end = int(time.process_time() + most) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (end, resource.RLIM_INFINITY))
        pipe.send(asked(*question))


class Apart:
    """A process of its own that answers; where a task takes too long it ends, and the next is begun."""

    def __init__(self, most: float):
        self.most = most
        self.process = None

    def ask(self, task: str, name: str, budget: float) -> dict[str, object]:
        """See `asked`."""
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.pipe, theirs = context.Pipe()
            self.process = context.Process(target=answering, args=(theirs, self.most), daemon=True)
            self.process.start()
            theirs.close()
        self.pipe.send((task, name, budget))
        try:
            return self.pipe.recv()
        except EOFError:
            self.process.join()
            slow = self.process.exitcode == -signal.SIGXCPU
            self.process = None
        if slow:
            told = {"outcome": "too slow", "says": [f"not done after {self.most:.0f} s"]}
            return told | {"budget": budget}
        return {"outcome": "fault", "says": ["the process ended"]}


def worst(told: dict) -> tuple[float, str]:
    """The largest difference of gradients in either mode, of double precision where that was asked,
    and why one is missing.
    """
    if told.get("outcome"):
        return float("nan"), told["says"][0]
    if not any(
        isinstance(value, float) for mode in ("eval", "train") for value in told[mode].values()
    ):
        return 0.0, f"none: {told['eval']['1']['ours']}"
    off = 0.0
    for mode in ("eval", "train"):
        double = told.get(f"{mode}, double", {})
        for key, value in told[mode].items():
            value = double.get(key, value) if isinstance(double.get(key), float) else value
            if isinstance(value, float):
                off = max(off, value) if value == value else float("inf")
            elif value.get("ours") == "gradients" or value.get("torch") == "gradients":
                return float("nan"), f"{mode}, {key}: {value['ours']} / torch: {value['torch']}"
    return off, ""


def in_single(told: dict) -> float:
    """The largest difference of gradients in single precision, where double had to decide; else 0."""
    modes = [mode for mode in ("eval", "train") if f"{mode}, double" in told]
    return max(
        (off for mode in modes for off in told[mode].values() if isinstance(off, float)),
        default=0.0,
    )


def in_short(said: dict) -> str:
    """What an audit says, without numbers that other columns of the table have."""
    first = said["says"][0] if said["says"] else ""
    for begins, short in (
        ("Too few photographs were attacked", "too few photographs"),
        ("The attack does not work on", "the attack does not work on the positive control"),
    ):
        if first.startswith(begins):
            return f"{short} in {said['budget']:.0f} seconds"
    return first


def table(stored: dict) -> str:
    """What stands between the marks of the page: all networks of which both answers are there."""
    done = {name: each for name, each in stored["networks"].items() if len(each) == 2}
    kinds = [each["audit"]["outcome"] for each in done.values()]
    wrong = sum(not worst(each["gradients"])[0] < CLOSE for each in done.values() if seen(each))
    rows = [
        "| network | pixels | gradients off torch's, at most | audit | found | what it says |",
        "|---|---|---|---|---|---|",
    ]
    for name in (name for name in ARCHITECTURES if name in done):
        gradients, said = done[name]["gradients"], done[name]["audit"]
        off, why = worst(gradients)
        single = in_single(gradients)
        cells = [
            name,
            ARCHITECTURES[name].side,
            why or f"{off:.0e}{f' ({single:.0e} in single precision)' if single else ''}",
            said["outcome"],
            f"{said['found']} of {said['of']}" if said.get("of") else "",
            in_short(said),
        ]
        if not seen(done[name]):
            cells[2] = "none"
        rows.append(f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |")
    counts = ", ".join(
        f"{kinds.count(kind)} {words}"
        for kind, words in (
            ("audited", "are audited and their control works"),
            ("cannot tell", "*cannot tell* in that time"),
            ("refused", "are refused"),
            ("too slow", "are too slow"),
            ("fault", "fail"),
        )
        if kind in kinds
    )
    most = max(each["audit"]["budget"] for each in done.values())
    return "\n".join(
        [
            f"Of {len(done)} networks {counts}; {wrong or 'no'} gradient{'s are' if wrong > 1 else ' is'} wrong. "
            f"An audit had at most {most:.0f} seconds of one core. Versions: "
            f"{', '.join(f'{name} {number}' for name, number in stored['versions'].items())}.",
            "",
            "<details><summary>Network by network</summary>",
            "",
            *rows,
            "",
            "</details>",
        ]
    )


def seen(each: dict) -> bool:
    """Whether a gradient of the network was compared, or should have been."""
    told = each["gradients"]
    return told.get("outcome") != "refused" and not worst(told)[1].startswith("none: ")


def versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def unsettled(own: dict, task: str, budget: float) -> bool:
    """Whether a task is to be asked: for the first time, or with more time than it had."""
    if task not in own:
        return True
    said = own[task].get("outcome")
    return said in ("cannot tell", "too slow") and own[task].get("budget", 0) < budget


def main() -> int:
    """Ask of each network what `--out` does not hold yet; 1 where a gradient is wrong or an error raw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE.with_suffix(".json"), help="is added to")
    parser.add_argument("--page", type=Path, default=PAGE, help="its table is written anew")
    parser.add_argument("--only", default="", help="texts, as a,b: networks with one of them")
    parser.add_argument(
        "--budget", type=float, default=120.0, help="an audit's, in seconds of processor"
    )
    parser.add_argument("--most", type=float, default=300.0, help="seconds until a task is ended")
    parser.add_argument("--tasks", default="gradients,audit")
    options = parser.parse_args()
    apart = Apart(options.most)
    stored = {"versions": versions(), "networks": {}}
    if options.out.exists():
        stored = json.loads(options.out.read_text(encoding="utf-8"))
    if stored["versions"] != versions():
        parser.error(f"{options.out} is of {stored['versions']}; installed are {versions()}")
    wrong = 0
    wanted = [name for part in options.only.split(",") for name in ARCHITECTURES if part in name]
    for name in dict.fromkeys(wanted):
        own = stored["networks"].setdefault(name, {})
        for task in options.tasks.split(","):
            if unsettled(own, task, options.budget):
                own[task] = apart.ask(task, name, options.budget)
                text = json.dumps(stored, indent=1) + "\n"
                write_atomically(options.out, lambda path, text=text: path.write_text(text))
        off, why = worst(own["gradients"]) if "gradients" in own else (0.0, "")
        said = own.get("audit", {})
        refused = own.get("gradients", {}).get("outcome") == "refused"  # a sentence, which is read
        fault = said.get("outcome") == "fault" or not (off < CLOSE or refused)
        wrong += fault
        print(
            f"{'FAULT ' if fault else ''}{name}: {why or f'{off:.1e}'}; {said.get('outcome')} "
            f"{said.get('found')}/{said.get('of')} {said.get('says')}",
            flush=True,
        )
    page = options.page.read_text(encoding="utf-8")
    between = re.compile(rf"(?<={MARK}\n\n).*?(?=\n\n{MARK})", re.DOTALL)
    page = between.sub(lambda found: table(stored), page, count=1)
    write_atomically(options.page, lambda path: path.write_text(page, encoding="utf-8"))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
