"""Networks that a forward pass changes, that keep tensors between calls, or that `copy.deepcopy`
refuses: every client's gradient is torch's own of a fresh network with the state that was sent.
"""

import dataclasses
import functools
import threading
import types
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from checks import refused
from torch import nn

import atsaudit
import atslib
from atslib import ATTACKS, Normalize, ThreatModel, rng
from atslib.attacks.objective import Objective
from atslib.clients.records import Record, Recorded, observed
from atslib.clients.updates import LocalTraining, observe_weights
from atslib.clients.view import Observed
from atslib.gradients.problems import unflatten
from atslib.models import copied, shared_parameters

pytestmark = pytest.mark.usefixtures("one_thread")
SIDE = 6
SHORT = dataclasses.replace(ATTACKS["adam-cosine"], steps=2)


class Body(nn.Module):
    """A small network whose scores a subclass changes."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, 2, 1)
        self.last = nn.Linear(4 * 9, 3)

    def features(self, x):
        return torch.sigmoid(self.first(x)).flatten(1)

    def forward(self, x):
        return self.last(self.features(x))


class Steps(Body):
    """Counts its steps in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.n += 1
        return super().forward(x) * self.n.clamp_min(1)


class Calls(Body):
    """Counts its calls in a number of Python, in either mode."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) / self.calls


class RunningMean(Body):
    """Subtracts an own running mean of its features."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4 * 9))

    def forward(self, x):
        f = self.features(x)
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * f.detach().mean(0)
        return self.last(f - self.mean)


class Observer(Body):
    """Scales by the largest value that it has met, also in eval mode, as observers for
    quantization do.
    """

    def __init__(self):
        super().__init__()
        self.seen = {"largest": torch.tensor(0.1)}

    def forward(self, x):
        f = self.features(x)
        self.seen["largest"] = torch.maximum(self.seen["largest"] + 0.3, f.detach().abs().max())
        return self.last(f / self.seen["largest"])


def spectral(wrap):
    body = Body()
    wrap(body.last)
    return body


MOVING = {
    "buffer": Steps,
    "number": Calls,
    "running mean": RunningMean,
    "observer": Observer,
    "spectral_norm": lambda: spectral(nn.utils.spectral_norm),
    "parametrized": lambda: spectral(nn.utils.parametrizations.spectral_norm),
}


class CountsAround(Body):
    """Counts its calls in a variable of a function that it holds."""

    def __init__(self):
        super().__init__()
        calls = 0

        def tick():
            nonlocal calls
            calls += 1
            return calls

        self.tick = tick

    def forward(self, x):
        return super().forward(x) / self.tick()


def counting_hook():
    body, calls = Body(), []
    body.register_forward_hook(lambda layer, _, out: calls.append(1) or out * len(calls))
    return body


MOVING |= {"closure": CountsAround, "hook": counting_hook}


class Keeps(Body):
    """Keeps a tensor made of a parameter between its calls in eval mode."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([0.3, -0.2, 0.1]))
        self.kept = None

    def forward(self, x):
        if self.training or self.kept is None:
            self.kept = self.bias.repeat(1, 1) * 2
        return super().forward(x) + self.kept


class KeepsByDevice(Keeps):
    """Keeps it by device, and forgets it in train mode, as LeViT does."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def train(self, mode=True):
        super().train(mode)
        if mode:
            self.kept = {}
        return self

    def forward(self, x):
        if x.device not in self.kept:
            self.kept[x.device] = self.bias[None] * 2
        return Body.forward(self, x) + self.kept[x.device]


class Memory:
    value = None


class KeepsElsewhere(Keeps):
    """Keeps it in an object of its own."""

    def __init__(self):
        super().__init__()
        self.memory = Memory()

    def forward(self, x):
        if self.memory.value is None:
            self.memory.value = self.bias[None] * 2
        return Body.forward(self, x) + self.memory.value


class KeepsInLayers(nn.Module):
    """Two layers that keep it, and a constant that is no such tensor."""

    def __init__(self):
        super().__init__()
        self.a, self.b = Keeps(), Keeps()
        self.constant = torch.tensor([1.0, 2.0, 3.0])

    def forward(self, x):
        return self.a(x) + self.b(x) * self.constant.to(x)


class KeepsProperty(Keeps):
    """Keeps it as Python's `cached_property` does."""

    @functools.cached_property
    def table(self):
        return self.bias[None] * 2

    def forward(self, x):
        return Body.forward(self, x) + self.table


class KeepsInCache(Keeps):
    """Keeps it in a function's own cache."""

    def __init__(self):
        super().__init__()
        self.table = functools.lru_cache(maxsize=None)(lambda: self.bias[None] * 2)

    def forward(self, x):
        return Body.forward(self, x) + self.table()


class KeepsAround(Keeps):
    """Keeps it in a variable of a function that it holds."""

    def __init__(self):
        super().__init__()
        made = []

        def table():
            if not made:
                made.append(self.bias[None] * 2)
            return made[0]

        self.table = table

    def forward(self, x):
        return Body.forward(self, x) + self.table()


class KeepsBuffer(Keeps):
    """Keeps it in a buffer that is not saved."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", None, persistent=False)

    def forward(self, x):
        if self.table is None:
            self.table = self.bias[None] * 2
        return Body.forward(self, x) + self.table


KEEPING = {
    "property": KeepsProperty,
    "cache": KeepsInCache,
    "closure": KeepsAround,
    "buffer": KeepsBuffer,
    "attribute": Keeps,
    "by device": KeepsByDevice,
    "object": KeepsElsewhere,
    "layers": KeepsInLayers,
}


class Logs(Body):
    """Keeps its activations."""

    def __init__(self):
        super().__init__()
        self.activations = []

    def forward(self, x):
        f = self.features(x)
        self.activations.append(f)
        return self.last(f)


def hooked():
    body = Body()
    body.first.register_forward_hook(lambda layer, _, out: setattr(layer, "seen", out))
    return body


def holding(value):
    def make():
        body = Body()
        body.held = value()
        return body

    return make


UNCOPIED = {
    "weight_norm": lambda: spectral(nn.utils.weight_norm),
    "spectral_norm": lambda: spectral(nn.utils.spectral_norm),
    "activations": Logs,
    "hook": hooked,
    "lock": holding(threading.Lock),
    "condition": holding(threading.Condition),
    "generator": holding(torch.Generator),
    "computed": holding(lambda: [torch.ones(2, requires_grad=True) * 2]),
}


def network(make, mode="eval"):
    """A network whose weights are drawn from a seed, that nobody has run yet."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old forms of both norms say that they are old
        torch.manual_seed(0)
        model = nn.Sequential(Normalize((0.5,), (0.25,)), make())
    return model.train(mode == "train")


def images(count=3):
    return torch.rand(count, 3, SIDE, SIDE, generator=rng(0, "images"))


def by_torch(make, mode, batch=1):
    """torch's own gradient of each client, with a network of its own that nobody has run."""
    rows = []
    for x, y in zip(images().split(batch), LABELS.split(batch), strict=True):
        model = network(make, mode)
        loss = F.cross_entropy(model(x), y)
        slopes = torch.autograd.grad(loss, list(shared_parameters(model).values()))
        rows.append(torch.cat([slope.flatten() for slope in slopes]))
    return torch.stack(rows)


LABELS = torch.tensor([0, 2, 1])


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("name", MOVING)
def test_every_client_begins_with_the_state_that_was_sent(name, mode):
    model = network(MOVING[name], mode)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for _ in range(2):  # nor does it matter what was observed before
        seen = atslib.observe(model, images(), LABELS, threat=ThreatModel(victim=mode))
        same(seen.gradients, by_torch(MOVING[name], mode))
    after = model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert model[1].__dict__.get("calls", 0) == 0


@pytest.mark.parametrize("name", MOVING)
def test_an_attacker_with_the_images_has_the_clients_gradients(name):
    seen = atslib.observe(
        network(MOVING[name], "train"), images(), LABELS, threat=ThreatModel(victim="train")
    )
    attack = ATTACKS["adam-cosine"]
    objective = Objective(seen, [attack] * 3)
    z = objective.normalize(images()).flatten(1)
    for _ in range(2):
        distance, _ = objective(z)
        assert (distance < 1e-5).all(), distance


@pytest.mark.parametrize("name", MOVING)
def test_a_recorded_update_is_attacked_with_the_state_that_the_client_moved(name):
    threat = ThreatModel(victim="train")
    model = network(MOVING[name], "train")
    sent = {key: value.clone() for key, value in model.state_dict().items()}
    records = []
    for number, row in enumerate(by_torch(MOVING[name], "train")):
        parts = unflatten(row[None], model)
        arrays = zip(shared_parameters(model), (part[0] for part in parts), strict=True)
        records.append(Record(f"client {number}", dict(arrays), (number,), 1))
    kept = Recorded(sent, "gradient", 0.1, 1, tuple(records), Path("round-00001"))
    rows = [torch.tensor([number]) for number in range(3)]
    seen = observed(kept, model, rows, LABELS, threat, (3, SIDE, SIDE))
    objective = Objective(seen, [ATTACKS["adam-cosine"]] * 3)
    distance, _ = objective(objective.normalize(images()).flatten(1))
    assert (distance < 1e-5).all(), distance


@pytest.mark.parametrize("name", MOVING)
def test_local_steps_move_the_state_of_their_own_client_alone(name):
    local = LocalTraining(epochs=2, lr=0.1)
    threat = ThreatModel(victim="train")
    model = network(MOVING[name], "train")
    seen = observe_weights(model, images(), LABELS, local=local, rng=0, threat=threat)
    for row, x, y in zip(seen.gradients, images().split(1), LABELS.split(1), strict=True):
        own = network(MOVING[name], "train")
        start = [p.detach().clone() for p in own.parameters()]
        optimizer = torch.optim.SGD(own.parameters(), lr=local.lr)
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(own(x), y).backward()
            optimizer.step()
        change = [(p - before).flatten() for p, before in zip(own.parameters(), start, strict=True)]
        same(row, torch.cat(change).detach())


def called_before(kind, called):
    """A network that was run once before, or never."""
    model = network(kind)
    if called != "never":
        with torch.set_grad_enabled(called == "with gradients"):
            model(images())
    return model


@pytest.mark.parametrize("called", ["never", "without gradients", "with gradients"])
@pytest.mark.parametrize("name", KEEPING)
def test_what_a_network_keeps_is_made_anew_for_each_gradient(name, called):
    model = called_before(KEEPING[name], called)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing takes no part in the scores
        seen = atslib.observe(model, images(), LABELS)
    wanted = by_torch(KEEPING[name], "eval")
    same(seen.gradients, wanted)
    assert wanted[:, -1].abs().min() > 0.01
    found = atslib.reconstruct(seen, SHORT, rng=0)
    assert found.cost.isfinite().all()


@pytest.mark.parametrize("name", UNCOPIED)
def test_networks_that_a_deep_copy_refuses_are_attacked_all_the_same(name):
    model = network(UNCOPIED[name])
    model(images())  # with what it keeps of that
    seen = atslib.observe(model, images(), LABELS)
    assert isinstance(seen, Observed)
    same(seen.gradients, by_torch(UNCOPIED[name], "eval"))
    assert atslib.reconstruct(seen, SHORT, rng=0).cost.isfinite().all()


def test_what_cannot_be_copied_is_named(tmp_path):
    model = network(Body)
    model[1].lock = threading.Lock()
    with open(tmp_path / "log", "w", encoding="utf-8") as file:
        model[1].log = file
        with refused("Sequential", "'1.log'", "TextIOWrapper", "None"):
            copied(model)
        with refused("'1.log'"):
            atslib.observe(model, images(), LABELS)
    model[1].log = (i for i in range(3))
    with refused("'1.log'", "generator"):
        atslib.observe(model, images(), LABELS)


def test_a_copy_has_a_generator_and_a_lock_of_its_own():
    model = network(holding(torch.Generator))
    model[1].lock = threading.Lock()
    twin = copied(model)
    state = model[1].held.get_state()
    torch.rand(3, generator=twin[1].held)
    assert torch.equal(model[1].held.get_state(), state)
    with model[1].lock:
        assert twin[1].lock.acquire(blocking=False)


COUNTED = {"calls": 0}
TABLES = {}


class CountsInClass(Body):
    calls = 0

    def forward(self, x):
        CountsInClass.calls += 1
        return super().forward(x) * CountsInClass.calls


class CountsInModule(Body):
    def forward(self, x):
        COUNTED["calls"] += 1
        return super().forward(x) * COUNTED["calls"]


class CountsInDefault(Body):
    def forward(self, x, calls=[0]):  # noqa: B006
        calls[0] += 1
        return super().forward(x) * calls[0]


class KeepsInModule(Keeps):
    def forward(self, x):
        if "table" not in TABLES:
            TABLES["table"] = self.bias[None] * 2
        return Body.forward(self, x) + TABLES["table"]


class KeepsInClass(Keeps):
    table = None

    def forward(self, x):
        if KeepsInClass.table is None:
            KeepsInClass.table = self.bias[None] * 2
        return Body.forward(self, x) + KeepsInClass.table + self.bias  # whose gradient is not 0


class KeepsInClassByShape(Keeps):
    tables = {"of shapes": {}}  # noqa: RUF012

    def forward(self, x):
        kept = self.tables["of shapes"]
        if x.shape[2:] not in kept:
            kept[x.shape[2:]] = self.bias[None] * 2
        return Body.forward(self, x) + kept[x.shape[2:]]


class KeepsInNewAttribute(Keeps):
    def forward(self, x):
        if not hasattr(KeepsInNewAttribute, "made"):
            KeepsInNewAttribute.made = self.bias[None] * 2
        return Body.forward(self, x) + KeepsInNewAttribute.made


class Box:
    def __init__(self):
        self.table = None


BOX = Box()
BEHIND = []


class KeepsInObject(Keeps):
    def forward(self, x):
        if BOX.table is None:
            BOX.table = self.bias[None] * 2
        return Body.forward(self, x) + BOX.table


def behind(bias):
    if not BEHIND:
        BEHIND.append(bias[None] * 2)
    return BEHIND[0]


class KeepsBehindFunction(Keeps):
    def forward(self, x):
        return Body.forward(self, x) + behind(self.bias)


@functools.lru_cache
def doubled(bias):
    return bias[None] * 2


class KeepsInCachedFunction(Keeps):
    def forward(self, x):
        return Body.forward(self, x) + doubled(self.bias)


class Settings:
    """A class that nobody makes one of."""

    step = 0
    table = None

    @classmethod
    def doubled(cls, bias):
        if cls.table is None:
            cls.table = bias[None] * 2
        return cls.table


class KeepsInSettings(Keeps):
    def forward(self, x):
        return Body.forward(self, x) + Settings.doubled(self.bias)


class CountsInSettings(Body):
    def forward(self, x):
        Settings.step += 1
        return super().forward(x) * Settings.step


elsewhere = types.ModuleType("elsewhere")
exec(
    "kept = {}\n"
    "def doubled(bias):\n"
    "    return kept.setdefault(0, bias[None] * 2) if not kept else kept[0]\n",
    elsewhere.__dict__,
)


class KeepsElsewhereInModule(Keeps):
    def forward(self, x):
        return Body.forward(self, x) + elsewhere.doubled(self.bias)


HOOKED = {"calls": 0}


def counting(layer, inputs, output):
    HOOKED["calls"] += 1
    return output * HOOKED["calls"]


class CountsInHook(Body):
    def __init__(self):
        super().__init__()
        self.last.register_forward_hook(counting)


KEEPING_OUTSIDE = {
    "TABLES of test_moving_networks": KeepsInModule,
    "KeepsInClass.table": KeepsInClass,
    "KeepsInClassByShape.tables": KeepsInClassByShape,
    "KeepsInNewAttribute.made": KeepsInNewAttribute,
    "BOX of test_moving_networks": KeepsInObject,
    "Settings.table": KeepsInSettings,
    "kept of elsewhere": KeepsElsewhereInModule,
    "BEHIND of test_moving_networks": KeepsBehindFunction,
    "doubled of test_moving_networks": KeepsInCachedFunction,
}


@pytest.fixture
def nothing_kept():
    """Nothing is kept outside networks, before and after."""

    def empty():
        TABLES.clear()
        KeepsInClass.table = BOX.table = Settings.table = None
        elsewhere.kept.clear()
        KeepsInClassByShape.tables["of shapes"].clear()
        if hasattr(KeepsInNewAttribute, "made"):
            del KeepsInNewAttribute.made
        BEHIND.clear()
        doubled.cache_clear()

    empty()
    yield
    empty()


@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.parametrize("called", ["never", "without gradients", "with gradients"])
@pytest.mark.parametrize("place", KEEPING_OUTSIDE)
def test_what_is_kept_outside_a_network_is_named_whoever_ran_it_before(place, called):
    model = called_before(KEEPING_OUTSIDE[place], called)
    with refused(f"Sequential changes {place}", "outside it", "attribute or a buffer"):
        atslib.observe(model, images(), LABELS)


@pytest.mark.usefixtures("nothing_kept")
def test_what_lies_outside_a_network_is_there_after_the_look_at_it():
    with torch.no_grad():
        for make in KEEPING_OUTSIDE.values():
            network(make)(images())
    kept = TABLES["table"], KeepsInClass.table, KeepsInNewAttribute.made, BOX.table, BEHIND[0]
    for make in KEEPING_OUTSIDE.values():
        with refused("outside it"):
            atslib.observe(network(make), images(), LABELS)
    after = TABLES["table"], KeepsInClass.table, KeepsInNewAttribute.made, BOX.table, BEHIND[0]
    assert all(a is b for a, b in zip(kept, after, strict=True))
    assert list(KeepsInClassByShape.tables["of shapes"]) == [(SIDE, SIDE)]


SEEN = {}
ALL_SEEN = []
GRIDS = {}


def logged(layer, inputs, output):
    SEEN["hook"] = output


@functools.lru_cache
def grid(count):
    return torch.arange(count).float()


class Logged(Keeps):
    """Keeps what nobody reads, and constant tables, outside; one parameter takes no part."""

    means = torch.ones(3)

    def __init__(self):
        super().__init__()
        self.idle = nn.Parameter(torch.ones(3))
        self.last.register_forward_hook(logged)

    def forward(self, x):
        if "grid" not in GRIDS:
            GRIDS["grid"] = torch.arange(3).float()
        scores = Body.forward(self, x) + self.bias * grid(3) + GRIDS["grid"] + self.means
        SEEN["scores"] = scores
        ALL_SEEN.append(scores)
        return scores


@pytest.mark.filterwarnings("ignore:1.idle takes no part")
def test_logs_and_constant_tables_outside_a_network_do_no_harm():
    def torchs(x, y):
        model = network(Logged)
        slopes = torch.autograd.grad(
            F.cross_entropy(model(x), y), list(model.parameters()), allow_unused=True
        )
        pairs = zip(slopes, model.parameters(), strict=True)
        return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])

    pairs = zip(images().split(1), LABELS.split(1), strict=True)
    wanted = torch.stack([torchs(x, y) for x, y in pairs])
    model = network(Logged)
    with torch.no_grad():
        model(images())
    for _ in range(2):
        same(atslib.observe(model, images(), LABELS).gradients, wanted)
    assert torch.equal(Logged.means, torch.ones(3))


OUTSIDE = {
    "CountsInClass.calls": CountsInClass,
    "COUNTED of test_moving_networks": CountsInModule,
    "a default of CountsInDefault.forward": CountsInDefault,
    "HOOKED of test_moving_networks": CountsInHook,
    "Settings.step": CountsInSettings,
    "TABLES of test_moving_networks": KeepsInModule,
}


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("place", OUTSIDE)
def test_state_outside_a_network_is_named(place, mode):
    TABLES.clear()
    model = network(OUTSIDE[place], mode)
    with refused(f"Sequential changes {place}", "outside it", "attribute or a buffer"):
        atslib.observe(model, images(), LABELS, threat=ThreatModel(victim=mode))
    with refused(f"Sequential changes {place}"):
        atsaudit.audit(
            model, torch.rand(12, 3, SIDE, SIDE), torch.arange(12) % 3, untrained=model, budget=1
        )


class Notes(Body):
    """Counts in its class what no score depends on."""

    calls = 0
    said = False

    def forward(self, x):
        Notes.calls += 1
        Notes.said = True
        return super().forward(x)


def test_state_outside_that_no_score_depends_on_does_no_harm():
    seen = atslib.observe(network(Notes), images(), LABELS)
    same(seen.gradients, by_torch(Notes, "eval"))
