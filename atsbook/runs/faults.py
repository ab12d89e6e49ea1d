"""What is wrong with an artifact: its tensors are checked against the hash that its facts state."""

import json
from pathlib import Path

from atslib.files import digest


def fault_of(path: Path) -> str | None:
    """What is wrong with an artifact on disk, if anything: `path` is that of its tensors."""
    sha256 = digest(path) if path.exists() else None
    return fault(sha256, path.with_suffix(".json").read_bytes())


def fault(sha256: str | None, facts: bytes | None) -> str | None:
    """What is wrong with an artifact, if anything, by the hash of its tensors and the bytes of its
    JSON.
    """
    if sha256 is None:
        return "the tensors are missing"
    try:
        stated = json.loads(facts)["sha256"]
    except (ValueError, KeyError, TypeError):
        return "its facts cannot be read"
    return None if sha256 == stated else "its bytes do not match their hash"
