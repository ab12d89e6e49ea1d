"""Policies, the operations an image goes through: `Policy` is a sequence, `Hybrid` draws a policy
per image.

Notation as in the paper: `"3-1-7"` applies operation 3, then 1, then 7; `"3-1-7+43-18-18"` draws
one of the two for each image; `""` is the identity. `OPS` and the kernels live in
`atslib.policies.operations`.
"""

import copy
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from textwrap import shorten

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from atslib.errors import AtsError, as_path, check_kind
from atslib.files import write_atomically
from atslib.policies.operations import OPS, apply, check_pixels, magnitude
from atslib.rng import as_stream
from atslib.rng import rng as stream

IDENTITIES = (28, 39)  # solarize from 256 on, and colour by a factor of 1

# Index -> the lowest index that is the same function, None for the identities. The 50 are 27
# functions and the identity: invert, autocontrast and equalize ignore their level, and some (name,
# level) are there twice.
CANONICAL: tuple[int | None, ...] = tuple(
    None
    if index in IDENTITIES
    else next(
        i
        for i, other in enumerate(OPS)
        if (other.name, magnitude(other)) == (op.name, magnitude(op))
    )
    for index, op in enumerate(OPS)
)


class _Drawn:
    """What policies and hybrids share: draws as tensors, then a deterministic application of them."""

    def __call__(self, pixels: Tensor, *, rng: torch.Generator | int) -> Tensor:
        """Transform each image with its own draws (see `draw`). (B, C, H, W) uint8 -> same.

        `rng` may be a seed.
        """
        check_pixels(pixels)
        return self.apply_draw(pixels, *self.draw(len(pixels), rng=as_stream(rng)))

    def as_torchvision(self, seed: int | None = None) -> "PilTransform":
        """A picklable callable from PIL image to PIL image, to put into a torchvision `Compose`."""
        return PilTransform(self, seed)


@dataclass(frozen=True)
class Policy(_Drawn):
    """Operations applied left to right, each with a random sign per image; no ids at all is the
    identity.

    Policies of equal `canonical()` are the same function; others may be too, as invert twice is the
    identity.
    """

    ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_kind("Policy of ids", self.ids, Iterable, "numbers of operations, such as (3, 1, 7)")
        object.__setattr__(self, "ids", tuple(self.ids))
        if bad := [i for i in self.ids if type(i) is not int or not 0 <= i < len(OPS)]:
            kind = "" if all(type(i) is int for i in bad) else ", of type int"
            raise AtsError(
                f"policy {str(self)!r}: no operation {bad}; ids run 0..{len(OPS) - 1}{kind}"
            )

    @classmethod
    def parse(cls, text: str) -> "Policy":
        """`"3-1-7"` -> `Policy((3, 1, 7))`, `""` -> `Policy()`. Inverse of `str`."""
        _check_text(text)
        parts = text.split("-") if text else []
        if not all(re.fullmatch("[0-9]{1,4}", part) for part in parts):
            raise AtsError(
                f"policy {text!r}: expected ids joined by '-', such as '3-1-7', or '' for none"
            )
        return cls(tuple(map(int, parts)))

    def __str__(self) -> str:
        return "-".join(map(str, self.ids))

    def names(self) -> str:
        """Human-readable: `"translateX 9 → contrast 6 → translateY 2"`."""
        return " → ".join(f"{OPS[i].name} {OPS[i].level}" for i in self.ids) or "identity"

    def canonical(self) -> "Policy":
        """The same function with each operation's lowest id and without identities, in the same
        order.
        """
        return Policy(tuple(CANONICAL[i] for i in self.ids if CANONICAL[i] is not None))

    def draw(self, n: int, *, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws for n images: (n,) zeros in the place of `Hybrid.draw`'s members, and signs (n, k)
        for k operations.

        A sign is +1 where a uniform number is below 0.5, else -1. Operations without a sign consume
        their draw too. From a CPU generator image i's signs do not depend on n.
        """
        draws = torch.rand((n, len(self.ids)), generator=rng, device=rng.device)
        return torch.zeros(n, dtype=torch.int64, device=rng.device), torch.where(draws < 0.5, 1, -1)

    def apply_draw(self, pixels: Tensor, member: Tensor, signs: Tensor) -> Tensor:
        """`apply_signs` with the arguments of `Hybrid.apply_draw`; `member` is ignored."""
        return self.apply_signs(pixels, signs)

    def apply_signs(self, pixels: Tensor, signs: Tensor) -> Tensor:
        """Transform with given signs: (B, C, H, W) uint8 and signs (B, k) of +1 and -1 -> (B, C, H,
        W) uint8.
        """
        check_pixels(pixels)
        if signs.shape != (len(pixels), len(self.ids)):
            expected = (len(pixels), len(self.ids))
            raise AtsError(
                f"policy {str(self)!r}: signs are {tuple(signs.shape)}; expected (B, k) = {expected}"
            )
        for index, sign in zip(self.ids, signs.unbind(1), strict=True):
            pixels = apply(index, pixels, sign)
        return pixels


@dataclass(frozen=True)
class Hybrid(_Drawn):
    """One of the members for each image, drawn uniformly each time the image is used."""

    members: tuple[Policy, ...]

    def __post_init__(self) -> None:
        check_kind("Hybrid of members", self.members, Iterable, "several atslib.Policy")
        object.__setattr__(self, "members", tuple(self.members))
        if not all(isinstance(member, Policy) for member in self.members):
            raise AtsError(
                f"hybrid {self.members}: its members are policies; Hybrid.parse takes text"
            )
        if not self.members or not all(member.ids for member in self.members):
            raise AtsError(
                f"hybrid {str(self)!r}: a member is empty; write the identity as {IDENTITIES[0]}"
            )

    @classmethod
    def parse(cls, text: str) -> "Hybrid":
        """`"3-1-7+43-18-18"` -> its two policies. Inverse of `str`."""
        _check_text(text)
        return cls(tuple(map(Policy.parse, text.split("+"))))

    def __str__(self) -> str:
        return "+".join(map(str, self.members))

    def names(self) -> str:
        """Human-readable: the members' names, joined by " or "."""
        return " or ".join(member.names() for member in self.members)

    def draw(self, n: int, *, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Which member each image gets (n,), and signs (n, k) of +1 and -1, k the longest member's
        length.

        Of n rows of 1 + k uniform numbers the first gives the member, the rest the signs; a shorter
        member uses its first ones. From a CPU generator image i's draw does not depend on n.
        """
        longest = max(len(member.ids) for member in self.members)
        draws = torch.rand((n, 1 + longest), generator=rng, device=rng.device)
        # A float32 just below 1 times M can round up to M.
        member = (draws[:, 0] * len(self.members)).long().clamp_(max=len(self.members) - 1)
        return member, torch.where(draws[:, 1:] < 0.5, 1, -1)

    def apply_draw(self, pixels: Tensor, member: Tensor, signs: Tensor) -> Tensor:
        """Transform with given draws: (B, C, H, W) uint8, member (B,), signs (B, k) -> (B, C, H, W)
        uint8.
        """
        check_pixels(pixels)
        if len(member) != len(pixels) or len(signs) != len(pixels):
            drawn = f"{len(member)} members and {len(signs)} rows of signs"
            raise AtsError(f"hybrid {str(self)!r}: {drawn} for {len(pixels)} images")
        out = torch.empty_like(pixels)
        for number, policy in enumerate(self.members):
            rows = (member == number).nonzero().squeeze(1)
            chosen = policy.apply_signs(
                pixels[rows.to(pixels.device)], signs[rows, : len(policy.ids)]
            )
            out[rows.to(pixels.device)] = chosen
        return out


def _check_text(text: object) -> None:
    check_kind("policy", text, str, "text, such as '3-1-7', '3-1-7+43-18-18', or '' for none")


def parse_policy(text: str | Policy | Hybrid) -> Policy | Hybrid:
    """`"3-1-7"` -> `Policy`, `"3-1-7+43-18-18"` -> `Hybrid`; either as it is.

    Raises:
        AtsError: no text, or text that names no policy.
    """
    if isinstance(text, Policy | Hybrid):
        return text
    _check_text(text)
    return Hybrid.parse(text) if "+" in text else Policy.parse(text)


def forms(policy: Policy | Hybrid, pixels: Tensor) -> Tensor:
    """All that a policy can make of each image: (B, C, H, W) uint8 -> (V, B, C, H, W) uint8.

    One form per member and combination of signs; those that are the same on every image are given
    once. What a server that knows the policy, but not what was drawn, has to try.
    """
    members = policy.members if isinstance(policy, Hybrid) else (policy,)
    made: list[Tensor] = []
    for member in members:
        for signs in product((1, -1), repeat=len(member.ids)):
            form = member.apply_signs(
                pixels, torch.tensor([signs] * len(pixels)).view(len(pixels), len(signs))
            )
            if not any(torch.equal(form, other) for other in made):
                made.append(form)
    return torch.stack(made)


class PilTransform(nn.Module):
    """A policy on single PIL images (mode RGB or L), pixel for pixel what the batched form gives.

    `seed=None` draws from torch's default generator, as torchvision does; a DataLoader seeds that
    one anew for each worker and epoch, so fix the loader's `generator` to repeat a run. With a seed
    the draws are those of `policy(pixels, rng=rng(seed))` on the images in order. Workers of a
    DataLoader would all draw the same, so there a seed is an error.

    In a joint pipeline of `torchvision.transforms.v2` it takes whole samples too, such as (image,
    label) or a dict, and `tv_tensors.Image` of uint8. What moves with an image, boxes, masks and
    key points, is refused: policies were made for classification, and would leave it behind. It is a
    module, since torchvision takes transforms in a `ModuleList` too.
    """

    def __init__(self, policy: "Policy | Hybrid", seed: int | None = None) -> None:
        super().__init__()
        self.policy = policy
        self.seed = seed
        self._rng = None if seed is None else stream(seed)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return (self.policy, self.seed) == (other.policy, other.seed)

    def __hash__(self) -> int:
        return hash((self.policy, self.seed))

    def extra_repr(self) -> str:
        """The policy and the seed."""
        return f"{self.policy!r}, seed={self.seed!r}"

    def forward(self, *sample: object) -> object:
        """One image in, a new one out; of a sample that has one image, a new sample with a new
        image.

        Raises:
            AtsError: no image, or more than one; a mode other than RGB and L; boxes or a mask.
        """
        images = [part for part in _parts(sample) if _is_image(part)]
        if len(images) > 1:
            raise AtsError(
                f"a policy's sample has {len(images)} images; it must have one, since a mask or a second view would get "
                "other draws"
            )
        if not images:
            what = f"image {sample[0]!r}" if len(sample) == 1 else f"sample {sample!r}"
            raise AtsError(
                f"a policy's {shorten(what, 120)} must be a PIL image; the policy itself takes a tensor"
            )
        made = _with(sample, images[0], self._one(images[0]))
        return made[0] if len(made) == 1 else made

    def _one(self, image: "Image.Image | Tensor") -> "Image.Image | Tensor":
        if isinstance(image, Tensor):
            if image.dtype != torch.uint8 or image.ndim != 3:
                raise AtsError(
                    f"a policy's tv_tensors.Image is {image.dtype} of shape {tuple(image.shape)}; it must be uint8 "
                    "(C, H, W), so place the policy before any conversion to floats"
                )
            pixels = image.as_subclass(Tensor)[None]
            return type(image)(self._drawn(pixels))
        if image.mode not in ("RGB", "L"):
            raise AtsError(
                f"image mode {image.mode!r} is not supported; convert to 'RGB' or 'L' first"
            )
        array = np.array(image)
        pixels = torch.from_numpy(array if array.ndim == 3 else array[:, :, None]).permute(2, 0, 1)[
            None
        ]
        result = self._drawn(pixels).permute(1, 2, 0).numpy()
        return Image.fromarray(
            np.ascontiguousarray(result if image.mode == "RGB" else result[:, :, 0])
        )

    def _drawn(self, pixels: Tensor) -> Tensor:
        """One image (1, C, H, W) uint8 -> (C, H, W)."""
        if self._rng is not None and torch.utils.data.get_worker_info() is not None:
            raise AtsError(
                f"seed {self.seed!r} would repeat in every worker; use seed=None in a DataLoader"
            )
        return self.policy(pixels, rng=self._rng or torch.default_generator)[0]


def _parts(sample: object) -> Iterator[object]:
    """What a sample of nested tuples, lists and dicts holds.

    Raises:
        AtsError: it holds what would have to move with the image.
    """
    if isinstance(sample, dict):
        sample = tuple(sample.values())
    if isinstance(sample, tuple | list):
        for part in sample:
            yield from _parts(part)
        return
    if _is_tv_tensor(sample) and not _is_image(sample):
        raise AtsError(
            f"a policy's sample has {type(sample).__name__}, which would have to move with the image; a policy is for "
            "classification, and moves the image alone"
        )
    yield sample


def _is_tv_tensor(part: object) -> bool:
    return isinstance(part, Tensor) and "tv_tensors" in type(part).__module__


def _is_image(part: object) -> bool:
    return isinstance(part, Image.Image) or (_is_tv_tensor(part) and type(part).__name__ == "Image")


def _with(sample: object, old: object, new: object) -> object:
    """The sample, with `new` in the place of `old`."""
    if sample is old:
        return new
    if isinstance(sample, dict):
        made = copy.copy(sample)  # a dict of its kind
        made.update((name, _with(part, old, new)) for name, part in sample.items())
        return made
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return type(sample)(*(_with(part, old, new) for part in sample))
    if isinstance(sample, tuple | list):
        return type(sample)(_with(part, old, new) for part in sample)
    return sample


def sample_uniform(n: int, *, rng: torch.Generator) -> list[Policy]:
    """`n` policies, each of the 127,550 of length 1 to 3 equally likely: 98 % have length 3.

    With replacement, and over ids: functions with several ids come up more often.
    """
    policies = []
    for number in torch.randint(
        50 + 50**2 + 50**3, (n,), generator=rng, device=rng.device
    ).tolist():
        length, number = (
            (1, number)
            if number < 50
            else (2, number - 50)
            if number < 2550
            else (3, number - 2550)
        )
        policies.append(Policy(tuple(number // 50**i % 50 for i in range(length))))
    return policies


def sample_authors(n: int, *, rng: torch.Generator) -> list[Policy]:
    """`n` policies as the authors' batch_generate.py draws them: three slots over -1..49, each -1
    left out.

    So 94.2 % have length 3, 5.7 % length 2, 0.11 % length 1, and one in 132,651 is empty. Their own
    upper bound is 50, an operation that does not exist (those runs crash); here it is 49.
    """
    slots = torch.randint(-1, len(OPS), (n, 3), generator=rng, device=rng.device).tolist()
    return [Policy(tuple(i for i in row if i >= 0)) for row in slots]


def sample_functions(n: int, *, rng: torch.Generator) -> list[Policy]:
    """At most `n` policies as the authors draw them, no function twice and none that does nothing.

    Of four times as many; one that is drawn again stands where it was drawn last.
    """
    drawn = reversed(sample_authors(4 * n, rng=rng))
    distinct = {policy.canonical(): policy for policy in drawn if policy.canonical().ids}
    return list(reversed(distinct.values()))[:n]


def enumerate_distinct() -> Iterator[Policy]:
    """All policies of length 1 to 3 in canonical form, 27 + 27² + 27³ = 20,439 of them, shortest
    first.

    Every other policy of such a length is one of these functions or the identity. Some of these
    still coincide: 0-0-1 is 1, since invert twice is the identity.
    """
    ids = [i for i, canonical in enumerate(CANONICAL) if canonical == i]
    return (Policy(chosen) for k in (1, 2, 3) for chosen in product(ids, repeat=k))


FORMAT = "atslib-policies-1"


def save_policies(path: str | Path, policies: Sequence[Policy | Hybrid], **facts: object) -> None:
    """Write policies as JSON, with the names of the operations they use and any `facts` JSON can
    hold.
    """
    check_kind("policies", policies, list | tuple, "a list of policies")
    for policy in policies:
        check_kind("policy", policy, Policy | Hybrid, "an atslib.Policy or Hybrid")
    if taken := {"format", "policies", "operations"} & set(facts):
        raise AtsError(f"fact {sorted(taken)[0]!r} is a name of the format; choose another")
    members = [m for policy in policies for m in getattr(policy, "members", (policy,))]
    used = sorted({index for member in members for index in member.ids})
    operations = {str(index): f"{OPS[index].name} {OPS[index].level}" for index in used}
    content = {
        "format": FORMAT,
        "policies": [str(p) for p in policies],
        "operations": operations,
        **facts,
    }
    path = as_path("policies' file", path)
    try:
        text = json.dumps(content, indent=1) + "\n"
    except TypeError as error:
        raise AtsError(f"{path}: a fact is no JSON value ({error})") from None
    write_atomically(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def load_policies(path: str | Path) -> list[Policy | Hybrid]:
    """The policies in a file of `save_policies`; `AtsError` says what is wrong with any other file."""
    path = as_path("policies' file", path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AtsError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise AtsError(f"{path}: is not JSON") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise AtsError(
            f"{path}: is not a policy file; expected an object with 'format': {FORMAT!r}"
        )
    texts = content.get("policies")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise AtsError(f"{path}: 'policies' must be a list of strings such as '3-1-7'")
    try:
        return [parse_policy(text) for text in texts]
    except AtsError as error:
        raise AtsError(f"{path}: {error}") from None
