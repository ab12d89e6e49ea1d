"""What is wrong with an artifact: its tensors are checked against the hash that its facts state, and
its facts against their own.
"""

import hashlib
import json
from pathlib import Path

from atslib.files import digest

# Of the facts without it. Artifacts of earlier versions and of the archive, which has hashes of its
# own, are without it.
SEAL = "facts_sha256"


def sealed(facts: dict) -> dict:
    """The facts, with their hash."""
    rest = {name: value for name, value in facts.items() if name != SEAL}
    return rest | {SEAL: hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()}


def fault_of(path: Path) -> str | None:
    """What is wrong with an artifact on disk, if anything: `path` is that of its tensors."""
    sha256 = digest(path) if path.exists() else None
    if sha256 is None:
        return "the tensors are missing"
    try:
        told = json.loads(path.with_suffix(".json").read_bytes())
        stated = told["sha256"]
    except (ValueError, KeyError, TypeError):
        return "its facts cannot be read"
    if SEAL in told and told != sealed(told):
        return "its facts do not match their hash"
    return None if sha256 == stated else "its bytes do not match their hash"
