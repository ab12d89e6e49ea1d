"""Batched operations against a loop over PIL images: `python benchmarks/transforms.py` prints one
JSON line.

Pillow's side is what a per-image pipeline pays: uint8 tensor -> PIL -> operation -> uint8 tensor.
Both sides are timed in this process on the same images, and the best of the rounds counts; `ratio`
is of the mean times.
"""

import json
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from atslib.data.load import available, load
from atslib.policies import operations as transforms

ROUNDS = 3
ENHANCERS = {
    "color": ImageEnhance.Color,
    "contrast": ImageEnhance.Contrast,
    "brightness": ImageEnhance.Brightness,
    "sharpness": ImageEnhance.Sharpness,
}


def cifar(n: int) -> Tensor:
    """(n, 3, 32, 32) uint8: CIFAR-100 test images where they are packed, else noise."""
    if not available("cifar100", "test"):
        return torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8)
    return load("cifar100", "test").pixels[:n]


def pillow(index: int, image: Image.Image, sign: int) -> Image.Image:
    """Operation `index` of `transforms.OPS` by Pillow itself."""
    name = transforms.OPS[index].name
    size = transforms.magnitude(transforms.OPS[index])
    if name in ENHANCERS:
        return ENHANCERS[name](image).enhance(1 + size * sign)
    if name == "rotate":
        turned = image.convert("RGBA").rotate(size)
        return Image.composite(turned, Image.new("RGBA", turned.size, (128,) * 4), turned).convert(
            image.mode
        )
    if name in ("shearY", "translateX", "translateY"):
        shift = size * sign * image.size[name == "translateY"]
        matrix = (1, 0, shift * (name == "translateX"), 0, 1, shift * (name == "translateY"))
        if name == "shearY":
            matrix = (1, 0, 0, size * sign, 1, 0)
        resample = Image.Resampling.BICUBIC if name == "shearY" else Image.Resampling.NEAREST
        return image.transform(
            image.size, Image.Transform.AFFINE, matrix, resample, fillcolor=(0, 0, 0)
        )
    if name == "posterize":
        return ImageOps.posterize(image, int(size))
    return ImageOps.solarize(image, size) if name == "solarize" else getattr(ImageOps, name)(image)


def looped(index: int, pixels: Tensor, sign: int) -> Tensor:
    """The per-image loop with its conversions: (B, 3, H, W) uint8 -> same."""

    def results() -> Iterator[Tensor]:
        for image in pixels:
            result = pillow(index, Image.fromarray(image.permute(1, 2, 0).numpy()), sign)
            yield torch.from_numpy(np.array(result)).permute(2, 0, 1)

    return torch.stack(list(results()))


def best_ms(run: Callable[[], Tensor]) -> float:
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds) * 1e3


def main(n: int = 1000) -> None:
    pixels = cifar(n).contiguous()
    ours = []
    theirs = []
    for index in range(len(transforms.OPS)):
        sign = 1 if index % 2 else -1  # both signs, without timing everything twice
        assert torch.equal(transforms.apply(index, pixels, sign), looped(index, pixels, sign)), (
            index
        )
        ours.append(best_ms(lambda i=index, s=sign: transforms.apply(i, pixels, s)))
        theirs.append(best_ms(lambda i=index, s=sign: looped(i, pixels, s)))
    mean_ours = sum(ours) / len(ours)
    mean_pillow = sum(theirs) / len(theirs)
    facts = {"benchmark": "transforms", "device": "cpu", "threads": torch.get_num_threads(), "n": n}
    facts |= {"ms_ours": round(mean_ours, 2), "ms_pillow": round(mean_pillow, 2)}
    facts["ratio"] = round(mean_pillow / mean_ours, 1)
    facts["per_op"] = {
        f"{i} {op.name} {op.level}": round(b / a, 1)
        for i, (op, a, b) in enumerate(zip(transforms.OPS, ours, theirs, strict=True))
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
