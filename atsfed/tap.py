"""What an honest-but-curious server sees, on disk: per round the weights it sent, per client what
came back.
"""

import dataclasses
import json
import shutil
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from atsfed.federation import Federation
from atsfed.sums import summed
from atslib.clients.view import Observed, Update
from atslib.errors import AtsError
from atslib.files import write_atomically
from atslib.models import in_mode

SUM = "summed"


class Tap:
    """A folder with a record of every round; each is written at once or not at all, so that none is
    half there.

    A round that is run again after a fault writes the same records again: nothing is lost, and
    nothing is there twice.

    Raises:
        AtsError: the folder has records of another federation; only the number of rounds may
            differ.
    """

    def __init__(self, folder: Path | str, federation: Federation):
        self.folder = Path(folder)
        self.federation = federation
        self.network = federation.network()
        facts = self.folder / "federation.json"
        self._facts = dataclasses.asdict(federation) | {"rounds": None}
        if facts.exists() and (kept := json.loads(facts.read_text())) != self._facts:
            name = next(name for name in self._facts if kept.get(name) != self._facts[name])
            has = kept.get(name)
            asked = self._facts[name]
            raise AtsError(
                f"{folder} has records of a federation with {name}={has!r}, not {asked!r}; name another"
            )

    def _file(self, number: int, name: str | int = "sent") -> Path:
        name = f"client-{name:04d}" if isinstance(name, int) else name
        return self.folder / f"round-{number:05d}" / f"{name}.safetensors"

    def begin(self, number: int, weights: dict[str, Tensor]) -> None:
        """Keep the weights that the server sends in a round; those after the last round under the
        next number.

        Records of this round and later ones that answer other weights are dropped: they are of no
        round any more.
        """
        file = self._file(number)
        data = _bytes(weights)
        if file.exists() and file.read_bytes() == data:
            return
        for folder in self.folder.glob("round-*"):
            if int(folder.name.split("-")[1]) >= number:
                shutil.rmtree(folder)
        write_atomically(
            self.folder / "federation.json",
            lambda partial: partial.write_text(json.dumps(self._facts)),
        )
        write_atomically(file, lambda partial: partial.write_bytes(data))

    def next(self) -> int:
        """The round that a server goes on with: the last one whose weights are known, 1 in a new
        folder.
        """
        return max(
            (int(file.parent.name.split("-")[1]) for file in self.folder.glob("round-*/sent.*")),
            default=1,
        )

    def refuse(self, number: int, sentences: list[str]) -> None:
        """Keep why answers of a round were left out, a line each."""
        text = "".join(f"{sentence}\n" for sentence in sentences)
        write_atomically(
            self._file(number).with_name("refused.txt"), lambda partial: partial.write_text(text)
        )

    def refused(self, number: int) -> list[str]:
        """Why answers of a round were left out, a sentence each."""
        file = self._file(number).with_name("refused.txt")
        return file.read_text().splitlines() if file.exists() else []

    def record(self, number: int, client: int, shared: dict[str, Tensor], images: int) -> None:
        """Keep what one client shared, by parameter, and how many images it said were behind it.

        Raises:
            AtsError: names, shapes or number format are not those of the network, a value is not
                finite, or the client cannot have so many images.
        """
        who = f"client {client} in round {number}"
        most = self.federation.most
        if not 1 <= images <= most:
            raise AtsError(
                f"{who} says it has {images} images, which must be 1 to {most}; it is left out"
            )
        check_shared(self.network, shared, who)
        data = _bytes(shared | {"images": torch.tensor(images)})
        write_atomically(self._file(number, client), lambda partial: partial.write_bytes(data))

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
        counts = {
            "clients": torch.tensor(list(images)),
            "images": torch.tensor(list(images.values())),
        }
        write_atomically(
            self._file(number, SUM), lambda partial: partial.write_bytes(_bytes(mean | counts))
        )

    def rounds(self) -> list[int]:
        """Numbers of the rounds of which anything was shared, from 1."""
        files = [
            file
            for name in ("client-*", SUM)
            for file in self.folder.glob(f"round-*/{name}.safetensors")
        ]
        return sorted({int(file.parent.name.split("-")[1]) for file in files})

    def clients(self, number: int) -> list[int]:
        """Which clients answered in a round."""
        if (file := self._file(number, SUM)).exists():
            return sorted(self._read(file)["clients"].tolist())
        return sorted(
            int(file.stem.split("-")[1])
            for file in self._file(number).parent.glob("client-*.safetensors")
        )

    def model(self, number: int) -> nn.Module:
        """The network as it was sent in a round; one number after the last round it is the result."""
        weights = self._read(self._file(number))
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                parameter.copy_(weights[name])
        return in_mode(self.network, self.federation.victim)

    def observed(self, number: int, client: int | None = None) -> Observed:
        """What the server saw of a client in a round, as every attack takes it.

        Labels are not known.

        Without a client, of all together, as `summed`; under secure aggregation there is nothing
        else.

        Raises:
            AtsError: it was not recorded, or only the sum of all clients was.
        """
        whole = self._file(number, SUM)
        if client is None and not whole.exists():
            return summed([self.observed(number, client) for client in self.clients(number)])
        if client is not None and whole.exists():
            raise AtsError(
                f"client {client} in round {number}: only the sum was seen; leave the client out to get it"
            )
        shared = self._read(whole if client is None else self._file(number, client))
        images = shared["images"].flatten().tolist()
        local = self.federation.local
        model = self.model(number)
        row = torch.cat([shared[name].flatten() for name, _ in model.named_parameters()])[None]
        known = None
        if local is not None and len(set(images)) == 1:
            known = dataclasses.asdict(local) | {"steps": local.steps(images[0])}
        update = Update(model, row, kind=self.federation.kind, local=known)
        shape = tuple(self.federation.shard(0).pixels.shape[1:])
        return Observed((update,), None, shape, self.federation.threat(sum(images)))

    def _read(self, file: Path) -> dict[str, Tensor]:
        if not file.exists():
            there = ", ".join(map(str, self.rounds())) or "none"
            raise AtsError(
                f"{file.parent.name}/{file.stem} was not recorded; rounds with records: {there}"
            )
        return safetensors.torch.load(file.read_bytes())


def _bytes(tensors: dict[str, Tensor]) -> bytes:
    return safetensors.torch.save(
        {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
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
        shapes = (
            f"{given.get(odd[0], 'nothing')} for {odd[0]}, which is {wanted.get(odd[0], 'unknown')}"
        )
        raise AtsError(f"{who} shared {shapes}; it is left out")
    formats = {name: parameter.dtype for name, parameter in network.named_parameters()}
    if odd := sorted(name for name, value in shared.items() if value.dtype != formats[name]):
        raise AtsError(
            f"{who} shared {shared[odd[0]].dtype} for {odd[0]}, not {formats[odd[0]]}; it is left out"
        )
    if bad := sorted(name for name, value in shared.items() if not value.isfinite().all()):
        raise AtsError(f"{who} shared values of {bad[0]} that are nan or infinite; it is left out")
