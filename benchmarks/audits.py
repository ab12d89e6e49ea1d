"""What an audit finds of networks that people have, and how much of its budget it takes: each by the
command of the book's page *Audit your own*, with its ten minutes.

`python examples/audit/make.py` writes the photographs and the weights into the current folder; then
`python benchmarks/audits.py --photos photos --weights w.safetensors --out results/audits.json`. All
networks but the example's are torchvision's, untrained, as it makes them: these are the positive
controls, in which an attack has to work.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

from atsbook.evidence.audit import processor
from atsbook.texts.audits import NETWORK
from atslib.files import write_atomically

HERE = Path(__file__).resolve()
EXAMPLE = HERE.parents[1] / "examples" / "audit" / "mine.py"
CLASSES = 10
IMAGENET = "--mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --batch 1"
PLAIN = "--mean 0.5,0.5,0.5 --std 0.25,0.25,0.25"
# by the name in the book's table: the options of the command
AUDITS = {
    "The page's example, trained, 64 px": f"--model {EXAMPLE}:build --weights {{weights}} {PLAIN}",
    "The same, five steps on eight images": (
        f"--model {EXAMPLE}:build --weights {{weights}} {PLAIN} --local-steps 5 --batch 8 --lr 0.01"
    ),
    "ResNet-18, 64 px": f"--model {HERE}:resnet18 {IMAGENET}",
    "ResNet-18, 224 px": f"--model {HERE}:resnet18 --image-size 224 {IMAGENET}",
    "MobileNetV3 small, 64 px": f"--model {HERE}:mobilenet_v3_small {IMAGENET}",
    "EfficientNet-B0, 64 px": f"--model {HERE}:efficientnet_b0 {IMAGENET}",
    "GoogLeNet, 64 px": f"--model {HERE}:googlenet {IMAGENET}",
    "GoogLeNet, 64 px, half an hour": f"--model {HERE}:googlenet {IMAGENET} --budget 30m",
    "Vision transformer, 64 px": f"--model {HERE}:vit {IMAGENET}",
}


def untrained(name: str, **settings: object) -> nn.Module:
    """A network of torchvision's for ten classes, as it is made."""
    from torchvision import models  # after atslib, which lets it be imported

    return models.get_model(name, num_classes=CLASSES, **settings)


def resnet18() -> nn.Module:
    return untrained("resnet18")


def mobilenet_v3_small() -> nn.Module:
    return untrained("mobilenet_v3_small")


def efficientnet_b0() -> nn.Module:
    return untrained("efficientnet_b0")


def googlenet() -> nn.Module:
    return untrained("googlenet", init_weights=True)


def vit() -> nn.Module:
    """Four layers of width 128, patches of 8 pixels."""
    from torchvision.models import VisionTransformer

    return VisionTransformer(64, 8, 4, 4, 128, 256, num_classes=CLASSES)


def audited(name: str, photos: Path, weights: Path, folder: Path) -> dict:
    """The report of one audit, and how many seconds the command took."""
    options = shlex.split(AUDITS[name].format(weights=weights))
    command = [sys.executable, "-m", "atsaudit", *options, "--data", str(photos)]
    command += ["--limit", "found<=5%", "--thorough", "--out", str(folder)]
    began = time.monotonic()
    ended = subprocess.run(command, capture_output=True, text=True)
    seconds = time.monotonic() - began
    if ended.returncode not in (0, 3, 4):
        raise SystemExit(f"{shlex.join(command)}\n{ended.stderr}")
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    del report["repeat"]  # it names folders of this machine
    return report | {
        "seconds": round(seconds),
        "processor": processor(),
        "threads": torch.get_num_threads(),
    }


def main() -> None:
    """Audit what `--out` does not hold yet, one network after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="a JSON file, which is added to")
    parser.add_argument("--reports", type=Path, default=Path("audits"), help="folder of reports")
    options = parser.parse_args()
    for number, name in enumerate(AUDITS):
        stored = json.loads(options.out.read_text()) if options.out.exists() else {}
        if NETWORK + name in stored:
            continue
        report = audited(name, options.photos, options.weights, options.reports / str(number))
        stored[NETWORK + name] = report
        text = json.dumps(stored, indent=1) + "\n"
        write_atomically(options.out, lambda path, text=text: path.write_text(text))
        print(f"{name}: {report['sentence']} {report['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
