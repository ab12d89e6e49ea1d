"""`atsaudit.audit` finds what networks that people have give away: the positive control of each."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

import atsaudit
import atslib
from atsaudit import work
from atsaudit.candidate_attacks import LAYERS, candidates, is_faint
from atsaudit.config import Case
from atsaudit.run_audit import networks_of
from atslib.attacks import PatchEmbedding
from atslib.attacks.analytic import patches_of
from atslib.measures.metrics import psnr

pytestmark = pytest.mark.slow

NORM = ([0.5] * 3, [0.25] * 3)
LONG = 1e5  # seconds, so that no busy machine has too few


def photographs(side, each=20):
    """So many drawn images of each of four classes."""
    images = atslib.load("shapes", "test")
    rows = torch.cat([(images.labels == label).nonzero().flatten()[:each] for label in range(4)])
    pixels = images.pixels[rows].float()
    if side != pixels.shape[-1]:
        pixels = functional.interpolate(pixels, (side, side), mode="bilinear", antialias=True)
    return pixels.round().byte(), images.labels[rows]


def vit(side, patch, width, layers=2):
    import torchvision  # after atslib, which lets it be imported

    return torchvision.models.VisionTransformer(
        side, patch, layers, 2, width, 2 * width, num_classes=4
    )


class Encoder(nn.Module):
    """Patches by a linear layer, learned positions, and torch's own encoder with dropout."""

    def __init__(self, side=64, patch=8, width=64):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(3 * patch**2, width)
        self.positions = nn.Embedding((side // patch) ** 2, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, width, dropout=0.1, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 4)

    def forward(self, images):
        patches = functional.unfold(images, self.patch, stride=self.patch).transpose(1, 2)
        return self.head(self.encoder(self.embed(patches) + self.positions.weight).mean(1))


def with_group_norm():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, stride=2), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Flatten(), nn.LazyLinear(4),
    )  # fmt: skip


class LayerNorm2d(nn.LayerNorm):
    def forward(self, maps):
        return super().forward(maps.movedim(1, -1)).movedim(-1, 1)


def with_layer_norm():
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, stride=4), LayerNorm2d(16), nn.Conv2d(16, 16, 3, padding=1), nn.GELU(),
        LayerNorm2d(16), nn.Flatten(), nn.LazyLinear(4),
    )  # fmt: skip


NETWORKS = {
    "vision transformer, 32 pixels": (lambda: vit(32, 4, 64), 32, "patch-embedding"),
    "vision transformer, 224 pixels": (lambda: vit(224, 16, 200, 1), 224, "patch-embedding"),
    "narrow vision transformer": (lambda: vit(32, 4, 32), 32, "patch-embedding"),
    "transformer encoder, 64 pixels": (Encoder, 64, "patch-embedding"),
    "group normalization, 32 pixels": (with_group_norm, 32, None),
    "layer normalization, 64 pixels": (with_layer_norm, 64, None),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_more_than_chance_is_found_in_the_positive_control(name):
    build, side, best = NETWORKS[name]
    pixels, labels = photographs(side)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = build()
        with torch.no_grad():
            model(pixels[:1] / 255)  # a lazy layer finds its size
    settings = {"batch": 1, "attacked": 8, "steps": 20}
    report = atsaudit.audit(model, pixels, labels, untrained=model, normalize=NORM, **settings)
    assert report.control.works, report.sentence
    assert best is None or report.control.attack == best


def torchvisions(name):
    """An untrained network of torchvision's for four classes, as it is made."""
    import torchvision

    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of GoogLeNet's initialization
        torch.default_generator.manual_seed(0)
        return getattr(torchvision.models, name)(num_classes=4)


def observed_by(model, pixels, labels):
    model = nn.Sequential(atslib.Normalize(*NORM), model).eval()
    return atslib.observe(model, pixels / 255, labels)


@pytest.mark.filterwarnings("ignore:.*take no part in the network's scores")
@pytest.mark.parametrize("name", ["efficientnet_b0", "mobilenet_v3_small", "googlenet"])
def test_where_most_layers_are_faint_each_is_compared_by_itself_first(name):
    pixels, labels = photographs(32)
    seen = observed_by(torchvisions(name), pixels[:1], labels[:1])
    assert is_faint(seen)
    names = list(candidates(seen, Case(weights="untrained"), 3))
    assert names[0] == LAYERS


def test_a_network_whose_layers_all_count_is_attacked_as_its_family_is():
    pixels, labels = photographs(32)
    seen = observed_by(torchvisions("resnet18"), pixels[:1], labels[:1])
    assert not is_faint(seen)
    assert next(iter(candidates(seen, Case(weights="untrained"), 3))) == "annealed-resnet"


@pytest.mark.parametrize(
    ("name", "side", "count", "steps"),
    [("efficientnet_b0", 32, 3, 20), ("mobilenet_v3_small", 32, 8, 80)],
)
def test_untrained_networks_give_their_photographs_away_layer_by_layer(
    monkeypatch, name, side, count, steps
):
    pixels, labels = photographs(side, 50)
    monkeypatch.setattr(work, "SIZES", ((count, steps, 8, 1),))  # nothing is compared
    model = torchvisions(name)
    report = atsaudit.audit(
        model, pixels, labels, untrained=model, normalize=NORM, batch=1, attacked=count,
        budget=LONG,
    )  # fmt: skip
    assert report.control.works, report.sentence
    assert report.control.attack == LAYERS
    assert report.faint
    assert "hardly depends on the photograph" in " ".join(report.notes)


def test_a_head_of_zeros_is_drawn_and_the_report_says_so():
    pixels, labels = photographs(32)
    model = vit(32, 8, 48)
    assert not model.heads.head.weight.any()  # as torchvision makes it
    report = atsaudit.audit(
        model, pixels, labels, untrained=model, normalize=NORM, batch=1, attacked=4, steps=2
    )
    assert "begins with nothing but zeros in heads.head" in report.notes[0]
    assert not model.heads.head.weight.any()  # the user's own is left alone
    assert report.found == 1


class Block(nn.Module):
    """A residual block whose branch begins as zeros: by its last normalization, by a scale or by its
    last layer.
    """

    def __init__(self, kind, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, 1, 1)
        self.last = nn.BatchNorm2d(width) if kind == "batch norm" else nn.Conv2d(width, width, 1)
        self.alpha = nn.Parameter(torch.tensor(0.0 if kind == "scale" else 1.0))
        if kind in ("batch norm", "layer"):
            nn.init.zeros_(self.last.weight)

    def forward(self, x):
        return x + self.alpha * self.last(self.conv(x).sigmoid())


def residual(kind, *, head=False, after=None):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 4, 3, 2, 1), Block(kind, 4)]
        layers += [after] if after else []
        model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 16 * 16, 10))
        if head:
            nn.init.zeros_(model[-1].weight)
        return model.eval()


def audited_networks(model):
    pixels, _ = photographs(32)
    return networks_of(model, model, NORM, pixels[:4], 0, None)


@pytest.mark.parametrize("kind", ["batch norm", "scale", "layer"])
def test_branches_that_begin_as_zeros_are_left_where_a_gradient_passes_beside_them(kind):
    model = residual(kind)
    networks, zeros = audited_networks(model)
    assert zeros == []
    for own, used in zip(model.parameters(), networks["untrained"].parameters(), strict=True):
        assert torch.equal(own, used)


@pytest.mark.parametrize("kind", ["batch norm", "scale", "layer"])
def test_of_zeros_only_those_are_drawn_that_let_no_gradient_pass(kind):
    model = residual(kind, head=True)
    networks, zeros = audited_networks(model)
    assert zeros == [f"{len(model) - 1}"]  # the head
    used = networks["untrained"]
    assert used[1][-1].weight.any()
    if kind != "scale":
        assert not used[1][1].last.weight.any()


def test_a_normalization_of_zeros_that_everything_passes_is_drawn_and_a_dead_network_is_not():
    norm = nn.BatchNorm2d(4)
    nn.init.zeros_(norm.weight)
    _, zeros = audited_networks(residual("layer", after=norm))
    assert zeros == ["2"]
    dead = residual("layer", head=True)
    dead[0] = nn.Sequential(dead[0], nn.Threshold(1e9, 0.0))
    networks, zeros = audited_networks(dead)
    assert zeros == []
    assert not networks["untrained"][1][-1].weight.any()


def test_patches_are_exact_where_the_embedding_is_as_wide_as_there_are_patches():
    pixels, labels = photographs(32)
    model = vit(32, 8, 48)
    model.heads.head.reset_parameters()
    model = nn.Sequential(atslib.Normalize(*NORM), model).eval()
    seen = atslib.observe(model, pixels[:3] / 255, labels[:3])
    made = atslib.reconstruct(seen, PatchEmbedding(), rng=0)
    assert (psnr(made.images, pixels[:3] / 255) > 60).all()
    assert patches_of(model, (3, 32, 32)).kernel == (8, 8)
    both = atslib.observe(model, pixels[:2] / 255, labels[:2], threat=atslib.ThreatModel(batch=2))
    with pytest.raises(atslib.AtsError, match="one image per gradient"):
        atslib.reconstruct(both, PatchEmbedding(), rng=0)


def test_where_a_defense_spoils_the_closed_form_attacks_are_tried_against_it():
    pixels, labels = photographs(32)
    model = vit(32, 8, 48)
    report = atsaudit.audit(
        model, pixels, labels, untrained=model, normalize=NORM, batch=1, attacked=4, steps=2,
        defense="prune:0.9",
    )  # fmt: skip
    control, defended = report.results
    assert control.attack == "patch-embedding"
    assert len(defended.tried) > 2
    assert defended.tried["patch-embedding"] < control.tried["patch-embedding"]


class Patched(nn.Module):
    """A vision transformer of one layer, with more tokens before its patches, or with another way
    to them.
    """

    def __init__(self, extra=0, count=16, width=192, factor=1.0):
        super().__init__()
        self.embed = nn.Conv2d(3, width, 8, 8)
        self.extra = extra
        self.more = nn.Parameter(0.02 * torch.randn(1, extra, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, count + extra, width))
        self.layer = nn.TransformerEncoderLayer(width, 2, width, batch_first=True, dropout=0.1)
        self.head = nn.Linear(width, 4)
        self.factor = factor

    def tokens(self, images):
        return self.embed(images).flatten(2).transpose(1, 2) * self.factor

    def forward(self, images):
        tokens = self.tokens(images)
        tokens = torch.cat([self.more.expand(len(images), -1, -1), tokens], 1)
        return self.head(self.layer(tokens + self.positions).mean(1))


class Resized(Patched):
    def __init__(self, side):
        super().__init__(count=(side // 8) ** 2)
        self.side = side

    def tokens(self, images):
        return super().tokens(functional.interpolate(images, self.side, mode="bilinear"))


class Unfolded(Patched):
    """Patches by a linear layer whose numbers go by pixel, then by channel; half of them first."""

    def __init__(self):
        super().__init__(extra=4)
        self.embed = nn.Linear(192, 192)

    def tokens(self, images):
        rows = images.unflatten(3, (4, 8)).unflatten(2, (4, 8)).permute(0, 2, 4, 3, 5, 1)
        rows = rows.flatten(3).flatten(1, 2)
        return self.embed(torch.cat([rows[:, ::2], rows[:, 1::2]], 1))


class AsMaps(Patched):
    """Positions in the shape of maps, one for each channel."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(0.02 * torch.randn(1, 192, 4, 4))

    def forward(self, images):
        maps = self.embed(images) + self.positions
        return self.head(self.layer(maps.flatten(2).transpose(1, 2)).mean(1))


EMBEDDED = {
    "plain": Patched,
    "class token": lambda: Patched(extra=1),
    "registers": lambda: Patched(extra=5),
    "resized": lambda: Resized(64),
    "scaled": lambda: Patched(factor=3.0),
    "unfolded": Unfolded,
    "as maps": AsMaps,
}


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_layers_of_the_closed_form_are_found_by_running_the_network(name):
    torch.manual_seed(0)
    model = nn.Sequential(atslib.Normalize(*NORM), EMBEDDED[name]()).eval()
    pixels = photographs(32)[0][:3] / 255
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without further tokens they are of no use
        seen = atslib.observe(model, pixels, torch.tensor([0, 1, 2]))
    found = patches_of(seen.model, (3, 32, 32))
    assert found.exact
    assert (found.weight, found.positions) == ("1.embed.weight", "1.positions")
    assert next(iter(candidates(seen, Case(weights="untrained"), 60))) == "patch-embedding"
    least = 30 if name == "resized" else 60  # where tokens are alike, rounding counts for more
    assert (psnr(atslib.reconstruct(seen, PatchEmbedding(), rng=0).images, pixels) > least).all()


def test_what_a_smaller_image_lost_is_not_made_up():
    """Of an image that the network makes smaller the solution has the very gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(atslib.Normalize(*NORM), Resized(24)).eval()
    assert patches_of(model, (3, 32, 32)).exact


def narrow():
    return Patched(width=8)


def two_layers():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 48), nn.Sigmoid(), nn.Linear(48, 48), nn.Linear(48, 4)
    )


def strided():
    return nn.Sequential(nn.Conv2d(3, 8, 8, 8), nn.Sigmoid(), nn.Flatten(), nn.Linear(128, 4))


class Curved(Patched):
    def tokens(self, images):
        return super().tokens(images.sigmoid())


class Stem(Patched):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 3, 3, padding=1)

    def tokens(self, images):
        return super().tokens(self.stem(images))


class Interpolated(Patched):
    """Positions of a finer grid, put down to that of the patches."""

    def __init__(self):
        super().__init__(count=64)

    def forward(self, images):
        maps = self.positions.transpose(1, 2).unflatten(2, (8, 8))
        maps = functional.interpolate(maps, 4, mode="bilinear", antialias=True)
        return self.head(self.layer(self.tokens(images) + maps.flatten(2).transpose(1, 2)).mean(1))


@pytest.mark.parametrize("make", [two_layers, strided, Curved, Stem, Interpolated])
def test_no_closed_form_is_offered_where_no_such_layers_run(make):
    torch.manual_seed(0)
    model = nn.Sequential(atslib.Normalize(*NORM), make()).eval()
    assert patches_of(model, (3, 32, 32)) is None


def test_a_solution_that_is_not_exact_comes_after_other_attacks():
    torch.manual_seed(0)
    model = nn.Sequential(atslib.Normalize(*NORM), narrow()).eval()
    pixels, labels = photographs(32, each=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen = atslib.observe(model, pixels / 255, labels)
    assert not patches_of(seen.model, (3, 32, 32)).exact
    names = list(candidates(seen, Case(weights="untrained"), 60))
    assert "patch-embedding" in names[1:]
