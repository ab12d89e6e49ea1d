"""Gives every result in `results/` the key that its description has in this version, and pages the new keys.

A result's key is a hash of its description, so that a field that is added to a configuration changes the keys of
all results that have one. This fills in the fields that are named with their defaults, in the evidence and wherever a
page names a key, and changes nothing else:

    python benchmarks/rekey.py schedule unroll rounds
"""

import dataclasses
import io
import re
import sys
import typing
import zipfile
from collections import Counter
from pathlib import Path

from atsbook.evidence.archive import REQUESTS, Archive, key_of, request_of
from atsbook.packing import Row
from atslib.checkpoints import plain
from atslib.files import project_root


def configurations() -> list[type]:
    """The dataclasses of which descriptions are made: those of the requests, and what their fields hold."""
    found: dict[type, None] = {}

    def add(hint: object) -> None:
        for part in typing.get_args(hint):
            add(part)
        if dataclasses.is_dataclass(hint) and hint not in found:
            found[hint] = None
            for each in typing.get_type_hints(hint).values():
                add(each)

    for request in REQUESTS.values():
        add(request)
    return list(found)


def filled(value: object, kinds: list[type], names: set[str], seen: Counter) -> object:
    """A description with those of the named fields that it lacks.

    A dict is taken for the configuration of which it lacks fewest fields; these must be named, and fewer than half of
    all.
    """
    if isinstance(value, list):
        return [filled(each, kinds, names, seen) for each in value]
    if not isinstance(value, dict):
        return value
    value = {name: filled(each, kinds, names, seen) for name, each in value.items()}
    fitting = []
    for kind in kinds:
        fields = {field.name: field.default for field in dataclasses.fields(kind)}
        lacking = {name: fields[name] for name in fields if name not in value}
        known = value.keys() <= fields.keys() and 2 * len(lacking) < len(fields)
        if known and lacking.keys() <= names:
            fitting.append((len(lacking), kind.__name__, lacking))
    if not fitting:
        return value
    _, kind_name, lacking = min(fitting, key=lambda one: one[:2])
    if lacking:
        seen[kind_name, *lacking] += 1
    return value | {name: plain(each) for name, each in lacking.items()}


def moved(row: Row, kinds: list[type], names: set[str], seen: Counter) -> Row:
    """A result under its new key."""
    facts = row.facts | {"config": filled(row.facts["config"], kinds, names, seen)}
    return dataclasses.replace(row, key=key_of(facts), facts=facts)


def replaced(text: str, keys: dict[str, str]) -> str:
    """A text with its keys exchanged."""
    return re.sub(
        r"(?<![0-9a-f])[0-9a-f]{20}(?![0-9a-f])", lambda match: keys.get(match[0], match[0]), text
    )


def rename_in_zip(file: Path, keys: dict[str, str]) -> None:
    """The pictures of a page, which are named by keys."""
    whole = io.BytesIO()
    with zipfile.ZipFile(file) as before, zipfile.ZipFile(whole, "w") as after:
        for each in before.infolist():
            data = before.read(each)
            if each.filename.endswith(".json"):
                data = replaced(data.decode(), keys).encode()
            each.filename = replaced(each.filename, keys)
            after.writestr(each, data)
    file.write_bytes(whole.getvalue())


def main() -> None:
    root = project_root()
    names = set(sys.argv[1:])
    archive, kinds, seen = Archive(root / "results"), configurations(), Counter()
    before = archive._pages()
    tables = {
        page: [moved(row, kinds, names, seen) for row in rows.values()]
        for page, rows in before.items()
    }
    keys = {}
    for page, rows in before.items():
        keys |= dict(zip(rows, (row.key for row in tables[page]), strict=True))
    assert len(set(keys.values())) == len(keys), "two results would have one key"
    requests = [request_of(row.facts) for rows in tables.values() for row in rows]
    print(f"{sum(old != new for old, new in keys.items())} of {len(keys)} keys change")
    print(
        f"{sum(request is not None for request in requests)} of all are of requests that can be made again"
    )
    for (kind, *added), count in sorted(seen.items()):
        print(f"{count} x {kind}: {', '.join(added)}")
    weights = {}
    for name in archive._hashes():
        if name.startswith("networks/"):
            weights |= {keys[key]: tensors for key, tensors in archive._weights(name).items()}
    archive.replace(
        {page: {row.key: row for row in rows} for page, rows in tables.items()}, weights
    )
    for file in sorted(
        [
            *root.glob("results/*/*/*.json"),
            *root.glob("results/*.json"),
            *root.glob("book/results/*.ipynb"),
        ]
    ):
        text = file.read_text()
        if (changed := replaced(text, keys)) != text:
            file.write_text(changed)
    for file in root.glob("results/*/*/*.zip"):
        rename_in_zip(file, keys)


if __name__ == "__main__":
    main()
