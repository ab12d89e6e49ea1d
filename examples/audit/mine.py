"""A network of one's own, for `python -m atsaudit`."""

from torch import nn


def build() -> nn.Sequential:
    """Two convolutions and a linear layer, for photographs of 64 pixels in 10 classes."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 16 * 16, 10),
    )
