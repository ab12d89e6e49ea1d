"""Write an attack that runs in a reader's browser: one step as a graph, with its network."""

from pathlib import Path

import atslib
from atsbook.widgets.browser_graph import graph

DATASET = "shapes"  # whose images: their shape, classes and normalization
MODEL = "lenet"
CHECKPOINT = None  # a file of trained weights, such as that of `train.py`
WEIGHTS = "f16"  # half the size, weights rounded; or f32
OUT = Path("attack.json")

images = atslib.load(DATASET, "test")
channels, side = images.pixels.shape[1:3]
stream = atslib.rng(0, "weights", MODEL)
model = atslib.build_model(
    MODEL, images.num_classes, channels, norm=DATASET, image_size=side, rng=stream
)
print(graph.export(OUT, model, DATASET, CHECKPOINT, WEIGHTS))
