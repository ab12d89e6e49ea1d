"""Train a network whose client augments with a policy; the training is resumable."""

from pathlib import Path

import atslib
from atslib.clients.training import save_checkpoint

DATASET = "shapes"  # or cifar100, cifar10, fmnist, tinyimagenet
MODEL = "convnet-4"
POLICY = "3-1-7+43-18-18"  # "" for none
EPOCHS = 2
OUT = Path("model.safetensors")

train, test = (atslib.load(DATASET, split) for split in ("train", "test"))
train = train.subset(0.1, rng=atslib.rng(0, "subset"))  # a tenth, stratified
model = atslib.build_model(MODEL, train.num_classes, norm=DATASET, rng=atslib.rng(0, "weights"))
config = atslib.TrainConfig(policy=POLICY, epochs=EPOCHS)
state = OUT.with_suffix(".state")  # a training that was ended goes on from here
atslib.fit(model, train, config, rng=atslib.rng(0, "train"), checkpoint=state)
accuracy = atslib.evaluate(model, test)
save_checkpoint(OUT, model, model=MODEL, dataset=DATASET, policy=POLICY, accuracy=accuracy)
state.unlink(missing_ok=True)
print(f"{OUT}: test accuracy {accuracy:.2f} %")
