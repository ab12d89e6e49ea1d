"""What an honest-but-curious server sees, on disk: per round the weights it sent, per client what
came back.
"""

import contextlib
import dataclasses
import json
import operator
import re
import shutil
from pathlib import Path

import torch
from torch import Tensor, nn

from atsfed.declared import Declared
from atsfed.federation import Federation
from atslib.attacks.explained import in_labels
from atslib.checkpoints import read_tensors, write_tensors
from atslib.clients.defenses.defense import Transformation, own_defense
from atslib.clients.sums import summed
from atslib.clients.view import Observed, Update
from atslib.errors import AtsError
from atslib.files import write_atomically
from atslib.models import in_mode

SUM = "summed"
LONGEST = 600  # characters of a sentence that strangers have a word in
WORD = 200  # and of that word


class Tap:
    """A folder with a record of every round; each is written at once or not at all, so that none is
    half there.

    A round that is run again after a fault writes the same records again: nothing is lost, and
    nothing is there twice. Each record carries a hash, which is checked when it is read.

    Raises:
        AtsError: the folder has records of another federation; only the number of rounds may
            differ.
    """

    def __init__(self, folder: Path | str, federation: Federation):
        self.folder = Path(folder)
        self.federation = federation
        self.network = federation.network()
        self._facts = dataclasses.asdict(federation) | {"rounds": None}
        facts = self.folder / "federation.json"
        kept = _json(facts) if facts.exists() else self._facts
        if kept != self._facts:
            name = next(
                (name for name in self._facts if kept.get(name) != self._facts[name]),
                "other fields",
            )
            has = kept.get(name)
            asked = self._facts.get(name)
            raise AtsError(
                f"{folder} has records of a federation with {name}={has!r}, not {asked!r}; name another"
            )

    def _file(self, number: int, name: str | int = "sent") -> Path:
        try:
            number = operator.index(number)
        except TypeError:
            raise AtsError(f"round {number!r} must be a whole number, from 1 on") from None
        name = f"client-{name:04d}" if isinstance(name, int) else name
        return self.folder / f"round-{number:05d}" / f"{name}.safetensors"

    def begin(self, number: int, weights: dict[str, Tensor]) -> None:
        """Keep the weights that the server sends in round `number`; the result of the last round is
        kept as the weights of one round more.

        If other weights were kept under this number, all records of this and later rounds are
        deleted: they answer weights that are no longer sent.
        """
        file = self._file(number)
        if file.exists() and _same(self._read(file)[0], weights):
            return
        for there, folder in self._folders().items():
            if there >= number:
                shutil.rmtree(folder)
        write_atomically(
            self.folder / "federation.json",
            lambda partial: partial.write_text(json.dumps(self._facts)),
        )
        write_tensors(file, weights, {})

    def again(self) -> None:
        """Forget that the last rounds were run if nobody answered in them: their weights have not
        moved.
        """
        while self.next() > 1 and not self.clients(self.next() - 1):
            shutil.rmtree(self._file(self.next()).parent)

    def next(self) -> int:
        """The round that a server goes on with: the last one whose weights are known, 1 in a new
        folder.
        """
        return max((number for number in self._folders() if self._file(number).exists()), default=1)

    def _folders(self) -> dict[int, Path]:
        """The folder of each round by number; what else is there is nobody's round."""
        named = {
            folder: re.fullmatch(r"round-(\d{5,})", folder.name)
            for folder in self.folder.glob("round-*")
        }
        return {
            int(match[1]): folder for folder, match in named.items() if match and folder.is_dir()
        }

    def refuse(self, number: int, sentences: list[str]) -> None:
        """Keep why answers of a round were left out, a line each, whatever strangers have written
        into them.
        """
        text = "".join(f"{one_line(sentence)}\n" for sentence in sentences)
        file = self._file(number).with_name("refused.txt")
        write_atomically(file, lambda partial: partial.write_text(text, encoding="utf-8"))

    def refused(self, number: int) -> list[str]:
        """Why answers of a round were left out, a sentence each."""
        file = self._file(number).with_name("refused.txt")
        return (
            file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []
        )

    def record(self, number: int, client: int, shared: dict[str, Tensor], images: int) -> None:
        """Keep what one client shared, by parameter, and how many images it said were behind it.

        Raises:
            AtsError: names, shapes or number format are not those of the network, a value is not
                finite, or the client cannot have so many images.
        """
        self.check(number, client, shared, images)
        _keep(self._file(number, client), shared, {"images": images})

    def check(self, number: int, client: int, shared: dict[str, Tensor], images: int) -> None:
        """Raise `AtsError`, with its sender's name, unless this is what `record` takes."""
        who = f"client {client} in round {number}"
        most = self.federation.most
        if not 1 <= images <= most:
            raise AtsError(
                f"{who} says it has {images} images, which must be 1 to {most}; it is left out"
            )
        check_shared(self.network, shared, who)

    def record_sum(self, number: int, mean: dict[str, Tensor], images: dict[int, int]) -> None:
        """Keep the mean of what clients shared, by parameter, and how many images each client said
        it had.

        Raises:
            AtsError: as of `record`, and a client that there is not.
        """
        who = f"the sum of round {number}"
        most = self.federation.most
        clients = range(self.federation.clients)
        if odd := [
            client
            for client, count in images.items()
            if client not in clients or not 1 <= count <= most
        ]:
            raise AtsError(
                f"{who}: it has client {odd[0]} with {images[odd[0]]} images; clients are 0 to {len(clients) - 1}, "
                f"images 1 to {most}; it is left out"
            )
        check_shared(self.network, mean, who)
        counts = {"clients": list(map(int, images)), "images": list(map(int, images.values()))}
        _keep(self._file(number, SUM), mean, counts)

    def rounds(self) -> list[int]:
        """Numbers of the rounds of which anything was shared, from 1."""
        return sorted(number for number in self._folders() if self.clients(number))

    def clients(self, number: int) -> list[int]:
        """Which clients answered in a round."""
        if (file := self._file(number, SUM)).exists():
            return sorted(self._read(file)[1]["clients"])
        files = self._file(number).parent.glob("client-*.safetensors")
        named = [re.fullmatch(r"client-(\d{4,})", file.stem) for file in files]
        return sorted(int(match[1]) for match in named if match)

    def model(self, number: int) -> nn.Module:
        """The network as it was sent in a round; one number after the last round it is the result."""
        weights, _ = self._read(self._file(number))
        check_shared(self.network, weights, f"{self._file(number)}: the server")
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                parameter.copy_(weights[name])
        return in_mode(self.network, self.federation.victim)

    def observed(self, number: int, client: int | None = None) -> Observed:
        """What the server saw of a client in a round, as every attack takes it.

        Labels are not known.

        Where the defense acts on images alone, the federation itself declares what an answer is,
        and `Observed.doubts` says what speaks against it.

        Without a client, of all together, as `summed`; under secure aggregation there is nothing
        else.

        Raises:
            AtsError: it was not recorded, only the sum of all clients was, or its file is damaged.
        """
        whole = self._file(number, SUM)
        if client is None and not whole.exists():
            return summed([self.observed(number, client) for client in self.clients(number)])
        if client is not None and whole.exists():
            raise AtsError(
                f"client {client} in round {number}: only the sum was seen; leave the client out to get it"
            )
        file = whole if client is None else self._file(number, client)
        shared, facts = self._read(file)
        check_shared(self.network, shared, str(file))
        images = facts["images"] if isinstance(facts["images"], list) else [facts["images"]]
        local = self.federation.local
        model = self.model(number)
        row = torch.cat([shared[name].flatten() for name, _ in model.named_parameters()])[None]
        known = None
        if local is not None and len(set(images)) == 1:
            known = dataclasses.asdict(local) | {"steps": local.steps(images[0])}
        update = Update(model, row, kind=self.federation.kind, local=known)
        shape = tuple(self.federation.shard(0).pixels.shape[1:])
        seen = Observed((update,), None, shape, self.federation.threat(sum(images)))
        if client is None or not (declared := self._declared(images[0])):
            return seen
        before = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        first = declared.doubts(before, row[0])
        (second,) = in_labels(update, images[0], shape)
        return dataclasses.replace(seen, declared=declared.title, doubts=(first + second,))

    def _declared(self, images: int) -> Declared | None:
        """What an answer of so many images is by the federation's own description; None where a
        defense acts on it.
        """
        local = self.federation.local
        if not all(
            isinstance(part, Transformation) for part in own_defense(self.federation.defense).parts
        ):
            return None
        if local is None:
            return Declared(sent="gradient")
        return Declared(
            sent="difference", lr=local.lr, momentum=local.momentum, steps=local.steps(images)
        )

    def _read(self, file: Path) -> tuple[dict[str, Tensor], dict]:
        if not file.exists():
            there = ", ".join(map(str, self.rounds())) or "none"
            raise AtsError(
                f"{file.parent.name}/{file.stem} was not recorded; rounds with records: {there}"
            )
        return read_hashed(file)


def read_hashed(file: Path) -> tuple[dict[str, Tensor], dict]:
    """The tensors and facts of a record; `AtsError` if it is damaged, or has no hash that would
    show it.
    """
    tensors, facts, hashed = read_tensors(file)
    if not hashed:
        raise AtsError(
            f"{file} carries no hash, so that nobody can tell whether it is damaged; record the round again"
        )
    return tensors, facts


def _keep(file: Path, tensors: dict[str, Tensor], facts: dict) -> None:
    """Write a record, unless it is there already; a damaged one is written anew."""
    if file.exists():
        with contextlib.suppress(AtsError):
            kept, there = read_hashed(file)
            if there == facts and _same(kept, tensors):
                return
    write_tensors(file, tensors, facts)


def _json(file: Path) -> dict:
    try:
        kept = json.loads(file.read_bytes())
    except ValueError:
        kept = None
    if not isinstance(kept, dict):
        raise AtsError(
            f"{file} is damaged: it is no JSON object; take it away to go on with the records beside it"
        )
    return kept


def _same(kept: dict[str, Tensor], given: dict[str, Tensor]) -> bool:
    return kept.keys() == given.keys() and all(
        torch.equal(kept[name], given[name].detach().cpu()) for name in kept
    )


def one_line(text: object, most: int = LONGEST) -> str:
    """Text that strangers have a word in, as one line of printable characters, of which that text
    has at most `most`.
    """
    words = str(text)
    words = words if len(words) <= most else f"{words[: most - 2]} …"
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in words
    )


def check_shared(network: nn.Module, shared: dict[str, Tensor], who: str) -> None:
    """Raise `AtsError`, with its sender's name, unless these are finite floats of the network's
    parameters.
    """
    wanted = {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
    given = {name: tuple(value.shape) for name, value in shared.items()}
    if odd := sorted(
        name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name)
    ):
        shapes = f"{given.get(odd[0], 'nothing')} for {one_line(odd[0], WORD)}, which is {wanted.get(odd[0], 'unknown')}"
        raise AtsError(f"{who} shared {shapes}; it is left out")
    formats = {name: parameter.dtype for name, parameter in network.named_parameters()}
    if odd := sorted(name for name, value in shared.items() if value.dtype != formats[name]):
        raise AtsError(
            f"{who} shared {shared[odd[0]].dtype} for {odd[0]}, not {formats[odd[0]]}; it is left out"
        )
    if bad := sorted(name for name, value in shared.items() if not value.isfinite().all()):
        raise AtsError(f"{who} shared values of {bad[0]} that are nan or infinite; it is left out")
