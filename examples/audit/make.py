"""Writes what the book's page *Audit your own* audits: `photos`, a folder of photographs, and `w.safetensors`.

The photographs are 50 of each of ten classes of Tiny ImageNet's training set; the weights are those of `mine.build`
after twelve epochs on 500 others, of the same classes.
"""

from pathlib import Path

import torch
from mine import build
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional

import atslib

CLASSES = range(0, 200, 20)


def photographs(folder: Path) -> None:
    """50 photographs of each class, in a subfolder per class."""
    images = atslib.load("tinyimagenet", "train")
    for label in CLASSES:
        place = folder / images.class_names[label]
        place.mkdir(parents=True, exist_ok=True)
        pixels = images.pixels[(images.labels == label).nonzero().flatten()[:50]]
        for number, picture in enumerate(pixels.permute(0, 2, 3, 1).numpy()):
            Image.fromarray(picture).save(place / f"{number:03}.png")


def weights(file: Path) -> None:
    """The network, trained on other photographs."""
    torch.manual_seed(0)
    images = atslib.load("tinyimagenet", "test")
    order = sorted(
        CLASSES, key=lambda label: images.class_names[label]
    )  # as the folder's classes stand
    rows = torch.cat([(images.labels == label).nonzero().flatten() for label in order])
    labels = torch.cat(
        [torch.full((int((images.labels == label).sum()),), n) for n, label in enumerate(order)]
    )
    inputs = (images.pixels[rows] / 255 - 0.5) / 0.25
    model = build().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(12):
        for part in torch.randperm(len(inputs)).split(32):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs[part]), labels[part]).backward()
            optimizer.step()
    save_file(model.state_dict(), file)


if __name__ == "__main__":
    photographs(Path("photos"))
    weights(Path("w.safetensors"))
