#!/usr/bin/env bash
# transformers: the running means of MobileNet and EfficientNet are those of the last batch.
#
# Versions: transformers 5.24.0, torch 2.13.0
# Guess: running statistics move by a tenth or less a step, as in the networks that these
#   are copies of.
# Behaviour: TensorFlow's momentum (0.997, 0.9997, 0.99), which says what stays, is given to
#   torch, where it says what is taken in: after one step the buffers are the last batch's
#   own statistics to 0.3 %. A client that sends its buffers sends the per-channel means of
#   its last batch, and eval mode jumps from batch to batch.
# Source: transformers/models/mobilenet_v2/modeling_mobilenet_v2.py (momentum=0.997),
#   mobilenet_v1 (0.9997), efficientnet/configuration_efficientnet.py (batch_norm_momentum
#   0.99). The same mix-up in torchvision's MaxViT was mended:
#   github.com/pytorch/vision/issues/8250.
# Output seen:
#   torch 2.13.0+cpu transformers 5.24.0
#   MobileNetV1ForImageClassification: momentum 0.9997, running mean 0.03% from the last batch's
#   MobileNetV2ForImageClassification: momentum 0.997, running mean 0.30% from the last batch's
#   EfficientNetForImageClassification: momentum 0.99, running mean 1.00% from the last batch's
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
if [ -n "${FINDINGS_VENV:-}" ]; then
    python=$FINDINGS_VENV/bin/python
else
    python3 -m venv venv
    venv/bin/pip install --quiet --disable-pip-version-check \
        torch==2.13.0 numpy==2.4.6 transformers==5.24.0
    python=$tmp/venv/bin/python
fi
"$python" -I - <<'PY'
import logging
import warnings

import torch
import transformers
from torch import nn

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
print("torch", torch.__version__, "transformers", transformers.__version__)

from transformers import (  # noqa: E402
    EfficientNetConfig,
    EfficientNetForImageClassification,
    MobileNetV1Config,
    MobileNetV1ForImageClassification,
    MobileNetV2Config,
    MobileNetV2ForImageClassification,
)

for config, classifier in (
    (MobileNetV1Config, MobileNetV1ForImageClassification),
    (MobileNetV2Config, MobileNetV2ForImageClassification),
    (EfficientNetConfig, EfficientNetForImageClassification),
):
    torch.manual_seed(0)
    net = classifier(config()).train()
    norm = next(m for m in net.modules() if isinstance(m, nn.BatchNorm2d) and m.momentum > 0.5)
    seen = []
    norm.register_forward_hook(lambda module, args, out, seen=seen: seen.append(args[0].mean((0, 2, 3))))
    with torch.no_grad():
        net(torch.rand(4, 3, 32, 32))
    off = ((norm.running_mean - seen[0]).norm() / seen[0].norm()).item()
    print(f"{classifier.__name__}: momentum {norm.momentum}, running mean {off:.2%} from the last batch's")
    assert norm.momentum >= 0.99 and off < 0.02
PY
