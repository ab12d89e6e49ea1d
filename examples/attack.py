"""Reconstruct images from what a client shares of them, with the network of `train.py`; resumable."""

import dataclasses
from pathlib import Path

import atslib
from atslib.clients.prepare import prepare, streams
from atslib.clients.training import load_checkpoint

DATASET = "shapes"
MODEL = "convnet-4"
POLICY = "3-1-7+43-18-18"
CHECKPOINT = Path("model.safetensors")  # without it the network is untrained

images = atslib.load(DATASET, "test")[list(range(4))]
model = atslib.build_model(MODEL, images.num_classes, norm=DATASET, rng=atslib.rng(0, "weights"))
if CHECKPOINT.exists():
    load_checkpoint(CHECKPOINT, model)
private = prepare(images.pixels, atslib.parse_policy(POLICY), rng=streams(0, POLICY))
seen = atslib.observe(model.eval(), private, images.labels)  # all that the server sees: no image
attack = dataclasses.replace(atslib.ATTACKS["annealed-convnet"], steps=30)
made = atslib.reconstruct(seen, attack, rng=atslib.rng(0), checkpoint=Path("attack.state"))
for number, psnr in enumerate(atslib.psnr(made.images, private)):
    print(f"image {number}: {psnr:.1f} dB")
