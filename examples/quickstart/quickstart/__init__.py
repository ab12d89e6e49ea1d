"""A small federation on Flower and PyTorch."""

import atslib as atslib  # first: torchvision from another index than torch's cannot be imported without it
