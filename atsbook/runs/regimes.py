"""How long a training is."""

import math

from atsbook.networks import dataset
from atslib.clients.training import TrainConfig


def training_steps(name: str, train: TrainConfig, fraction: float = 1.0) -> int:
    """Steps of a whole training on this share of a data set."""
    return train.epochs * math.ceil(fraction * len(dataset(name, "train")) / train.batch)
