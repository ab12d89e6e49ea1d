#!/usr/bin/env bash
# torch: class weights do not weigh the gradient of a single image.
#
# Versions: torch 2.13.0
# Guess: with cross_entropy(weight=w), an image of a class with weight 10 has ten times the
#   gradient, and a batch's gradient is the mean of its images' gradients.
# Behaviour: the mean is a weighted one, so that a batch of one image divides its own weight
#   away: its gradient is the same with any weight; in a batch of three with weights 1, 10
#   and 0.1 the same images count 0.27, 2.7 and 0.027 times. A client with batches of one
#   trains as if there were no class weights, and averaging single gradients is another
#   gradient than the batch's.
# Source: torch.nn.CrossEntropyLoss's documentation (the formula of reduction='mean').
# Output seen:
#   torch 2.13.0+cpu
#   single images, weighted against not weighted: largest difference 0.0
#   the same images in one batch count [0.27, 2.703, 0.027]
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
if [ -n "${FINDINGS_VENV:-}" ]; then
    python=$FINDINGS_VENV/bin/python
else
    python3 -m venv venv
    venv/bin/pip install --quiet --disable-pip-version-check \
        torch==2.13.0 numpy==2.4.6
    python=$tmp/venv/bin/python
fi
"$python" -I - <<'PY'
import torch
import torch.nn.functional as F

torch.manual_seed(0)
weight, labels = torch.tensor([1.0, 10.0, 0.1]), torch.arange(3)
scores = torch.randn(3, 3, requires_grad=True)


def gradient(rows, weight):
    loss = F.cross_entropy(scores[rows], labels[rows], weight=weight)
    return torch.autograd.grad(loss, scores)[0][rows]


single = torch.cat([gradient([i], weight) for i in range(3)])
plain = torch.cat([gradient([i], None) for i in range(3)])
share = (3 * gradient([0, 1, 2], weight) / plain).mean(1)
print("torch", torch.__version__)
print("single images, weighted against not weighted: largest difference", (single - plain).abs().max().item())
print("the same images in one batch count", [round(s, 3) for s in share.tolist()])
assert torch.allclose(single, plain) and torch.allclose(share, 3 * weight / weight.sum())
PY
