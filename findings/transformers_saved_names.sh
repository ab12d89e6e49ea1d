#!/usr/bin/env bash
# transformers: the file that `save_pretrained` writes has other names than the network.
#
# Versions: transformers 5.24.0, torch 2.13.0, safetensors 0.8.0
# Guess: `model.safetensors` holds `model.state_dict()`, so that
#   `model.load_state_dict(load_file("model.safetensors"))` takes it.
# Behaviour: version 5 has new names for layers, and writes files under those of version 4, so
#   that published and new files agree. Of a ViT most names are others (`vit.layers.0.attention.
#   q_proj.weight` is saved as `vit.encoder.layer.0.attention.attention.query.weight`):
#   `load_state_dict` raises, and with `strict=False` it quietly loads those few that have
#   stayed, and leaves the encoder at what it was. `from_pretrained` reads the file rightly, and
#   `save_pretrained(..., save_original_format=False)` writes the network's own names.
# Source: transformers/modeling_utils.py, save_pretrained (`save_original_format`);
#   transformers/core_model_loading.py, revert_weight_conversion.
# Output seen:
#   transformers 5.24.0 torch 2.13.0+cpu
#   in the file and in the network: 8 of 24 names
#   load_state_dict: RuntimeError, Missing key(s)
#   strict=False: 8 of 24 arrays loaded
#   from_pretrained: 24 of 24 arrays loaded
#   save_original_format=False: 24 of 24 names
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
if [ -n "${FINDINGS_VENV:-}" ]; then
    python=$FINDINGS_VENV/bin/python
else
    python3 -m venv venv
    venv/bin/pip install --quiet --disable-pip-version-check \
        transformers==5.24.0 torch==2.13.0 safetensors==0.8.0 numpy==2.4.6
    python=$tmp/venv/bin/python
fi
"$python" -W ignore -I - <<'PY'
import torch
import transformers
from safetensors.torch import load_file
from transformers import ViTConfig, ViTForImageClassification

transformers.utils.logging.disable_progress_bar()
print("transformers", transformers.__version__, "torch", torch.__version__)
config = ViTConfig(
    image_size=16, patch_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=8, num_labels=2, initializer_range=1.0,
)


def network(seed):
    torch.manual_seed(seed)
    made = ViTForImageClassification(config)
    for value in made.parameters():
        torch.nn.init.normal_(value)
    return made


def equal(model):
    own = model.state_dict()
    return sum(torch.equal(own[name], value) for name, value in saved.state_dict().items())


saved = network(1)
saved.save_pretrained("old")
file = load_file("old/model.safetensors")
own = saved.state_dict()
count = len(own)
print(f"in the file and in the network: {len(file.keys() & own.keys())} of {count} names")
assert 0 < len(file.keys() & own.keys()) < count
other = network(2)
assert equal(other) == 0
try:
    other.load_state_dict(file)
except RuntimeError as error:
    assert "Missing key(s)" in str(error)
    print("load_state_dict: RuntimeError, Missing key(s)")
else:
    raise SystemExit("the file has the network's names now")
other = network(2)
other.load_state_dict(file, strict=False)
print(f"strict=False: {equal(other)} of {count} arrays loaded")
assert 0 < equal(other) < count
right = equal(ViTForImageClassification.from_pretrained("old"))
print(f"from_pretrained: {right} of {count} arrays loaded")
assert right == count
saved.save_pretrained("new", save_original_format=False)
names = len(load_file("new/model.safetensors").keys() & own.keys())
print(f"save_original_format=False: {names} of {count} names")
assert names == count
PY
