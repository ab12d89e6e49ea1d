#!/usr/bin/env bash
# timm: in eval mode TinyViT keeps its attention biases from the first call on.
#
# Versions: timm 1.0.31, torch 2.14.1, torchvision 0.29.1
# Guess: eval mode switches dropout and batch statistics; a network's scores and gradients
#   are those of the weights that it has.
# Behaviour: the biases are looked up once and kept in a plain dict until train() is called.
#   After one pass without gradients no gradient reaches them; after one with gradients a
#   second backward pass fails; and weights that are loaded later are used all but these.
#   LeViT, EfficientViT (MSRA), EfficientFormer and EfficientFormerV2 do the same.
# Source: timm/models/tiny_vit.py, Attention.get_attention_biases (also levit.py,
#   efficientvit_msra.py, efficientformer.py, efficientformer_v2.py).
# Output seen:
#   torch 2.14.1+cu130 timm 1.0.31
#   gradient of the biases: fresh 6.2e-08, after a pass without gradients 0.0
#   second backward pass: Trying to backward through the graph a second time
#   other weights loaded after a pass: scores off by 4.0e-01, of a fresh network by 0.0
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
from timm.models.tiny_vit import TinyVit

print("torch", torch.__version__, "timm", timm.__version__)
images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def network(seed):
    torch.manual_seed(seed)
    net = TinyVit(
        num_classes=3, embed_dims=(8, 16, 16, 16), depths=(1, 1, 1, 1), num_heads=(1, 1, 1, 1), window_sizes=(4, 4, 2, 2)
    ).eval()
    for name, value in net.named_parameters():
        if name.endswith("attention_biases"):
            torch.nn.init.normal_(value)
    return net


def of_biases(net):
    wanted = [value for name, value in net.named_parameters() if name.endswith("attention_biases")]
    found = torch.autograd.grad(net(images).square().sum(), wanted, allow_unused=True)
    return sum(0.0 if g is None else g.norm().item() for g in found)


fresh, used = network(0), network(0)
with torch.no_grad():
    used(images)
print(f"gradient of the biases: fresh {of_biases(fresh):.1e}, after a pass without gradients {of_biases(used)}")
assert of_biases(network(0)) > 0 == of_biases(used)

try:
    fresh(images).square().sum().backward()
    raise SystemExit("a second backward pass works now")
except RuntimeError as error:
    print("second backward pass:", str(error).split(" (")[0])

with torch.no_grad():
    other = network(1)
    wanted = other(images)
    new = network(0)
    new.load_state_dict(other.state_dict())
    used.load_state_dict(other.state_dict())
    off, none = ((net(images) - wanted).norm().item() / wanted.norm().item() for net in (used, new))
print(f"other weights loaded after a pass: scores off by {off:.1e}, of a fresh network by {none}")
assert off > 1e-3 and none == 0
PY
