"""Pack an official copy of a data set, which is on the disk, into the files that `atslib.load` reads:
in $ATS_DATA, else ~/.cache/atslib.
"""

from pathlib import Path

from atslib.data.load import pack_official

NAME = "fmnist"  # or cifar100, cifar10, tinyimagenet
COPY = Path("official")  # torchvision's folder, or Stanford's zip of Tiny ImageNet

print("\n".join(map(str, pack_official(NAME, COPY))) or "nothing to do: the files are there")
