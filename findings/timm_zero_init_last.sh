#!/usr/bin/env bash
# timm: half of an untrained ResNet-18's gradient is 0.
#
# Versions: timm 1.0.31, torch 2.14.1, torchvision 0.29.1
# Guess: a network as its library makes it has a gradient in every layer, as torchvision's
#   ResNet-18 of the same name has.
# Behaviour: timm begins the last normalization of every residual branch with scales of 0,
#   so that the branch gives 0 and nothing before that layer in it gets a gradient: 32 of
#   62 arrays of the first update are 0 in every entry, and it tells nothing of them. From
#   the second step on they move. torchvision has the same option, switched off.
# Source: timm/models/resnet.py, ResNet.__init__, zero_init_last=True;
#   torchvision/models/resnet.py, zero_init_residual=False.
# Output seen:
#   torch 2.14.1+cu130 timm 1.0.31 torchvision 0.29.1+cu130
#   timm: 32 of 62 arrays of the gradient are zero, after one step 0
#   torchvision: 0 of 62 arrays of the gradient are zero, after one step 0
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
if [ -n "${FINDINGS_VENV:-}" ]; then
    python=$FINDINGS_VENV/bin/python
else
    python3 -m venv venv
    venv/bin/pip install --quiet --disable-pip-version-check \
        torch==2.14.1 torchvision==0.29.1 numpy==2.4.6 timm==1.0.31
    python=$tmp/venv/bin/python
fi
"$python" -I - <<'PY'
import timm
import torch
import torchvision

print("torch", torch.__version__, "timm", timm.__version__, "torchvision", torchvision.__version__)
images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def zeros(net):
    net.zero_grad()
    torch.nn.functional.cross_entropy(net(images), torch.tensor([0, 1])).backward()
    parts = [value.grad for value in net.parameters()]
    return sum(not part.any() for part in parts), len(parts)


for name, make in (("timm", timm.create_model), ("torchvision", torchvision.models.get_model)):
    torch.manual_seed(0)
    net = make("resnet18", num_classes=10).eval()
    first, count = zeros(net)
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    second, _ = zeros(net)
    print(f"{name}: {first} of {count} arrays of the gradient are zero, after one step {second}")
    assert (first > count / 2) == (name == "timm") and (first == 0) == (name == "torchvision")
    assert second == 0
PY
