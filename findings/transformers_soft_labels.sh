#!/usr/bin/env bash
# transformers: soft labels turn an image classifier's loss into binary cross-entropy, and it stays so.
#
# Versions: transformers 5.24.0, torch 2.13.0
# Guess: labels given as probabilities (mixup, smoothing) are taken as torch's cross_entropy
#   takes them, and each call looks at its own labels.
# Behaviour: float labels mean several labels an image: the loss is binary cross-entropy.
#   The kind is then kept in the configuration, so that integer labels, which work in a
#   fresh network, raise afterwards, and soft labels raise in a network that saw integer
#   ones.
# Source: transformers/loss/loss_utils.py (config.problem_type is set at the first call).
# Output seen:
#   torch 2.13.0+cpu transformers 5.24.0
#   first torch.int64: loss 1.131, cross-entropy 1.131; kept: single_label_classification
#   then torch.float32: Expected input batch_size (2) to match target batch_size (6).
#   first torch.float32: loss 0.701, cross-entropy 1.131; kept: multi_label_classification
#   then torch.int64: Target size (torch.Size([2])) must be the same as input size (torch.Size([2, 3]))
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
import torch.nn.functional as F
import transformers

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
print("torch", torch.__version__, "transformers", transformers.__version__)

from transformers import ViTConfig, ViTForImageClassification  # noqa: E402


def fresh():
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4, num_labels=3
    )
    return ViTForImageClassification(config).eval()


x, hard = torch.rand(2, 3, 8, 8), torch.tensor([0, 1])
soft = F.one_hot(hard, 3).float()
for first, second in ((hard, soft), (soft, hard)):
    net = fresh()
    out = net(x, labels=first)
    cross = F.cross_entropy(out.logits, first).item()
    print(f"first {first.dtype}: loss {out.loss.item():.3f}, cross-entropy {cross:.3f}; kept: {net.config.problem_type}")
    assert (abs(out.loss.item() - cross) < 1e-4) == (first is hard)
    try:
        net(x, labels=second)
    except ValueError as error:
        print(f"then {second.dtype}: {error}")
    else:
        raise AssertionError("the second kind of labels is taken now")
PY
