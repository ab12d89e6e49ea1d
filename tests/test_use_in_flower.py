"""The page "Use a policy in Flower": its changes to a fresh copy of the app, what is then seen, and
its script.
"""

import importlib
import re
import shutil
import sys
import tomllib

import pytest
import torch
from checks import refused
from federations import Nodes, sent_by

import atslib
from atsfed import Declared
from atslib.files import project_root
from atslib.models import Normalize

pytest.importorskip("flwr", reason="the extra atslib[federated] is not installed")
pytestmark = [pytest.mark.federated, pytest.mark.usefixtures("one_thread")]
ROOT = project_root()
PAGE = (ROOT / "book" / "use_in_flower.md").read_text()
CHANGES = re.findall(r"^```diff\n(.*?)^```$", PAGE, re.M | re.S)
FILES = ("quickstart/server_app.py", "pyproject.toml", "quickstart/task.py")
ONE = {
    "shape": (3, 32, 32),
    "normalize": Normalize([0.5] * 3, [0.5] * 3),
    "declared": Declared(sent="weights", lr=0.02, momentum=0.9),
}
NODE = 1_000_000  # numbers of Flower's nodes are of another kind than those of clients


def change(text, diff):
    """A file after a printed change: a line with "+" goes after the one before it, or in place of
    those with "-".
    """
    place = 0
    for line in diff.splitlines():
        mark, words = line[0], line[1:]
        if mark != "+":
            assert text.count(f"{words}\n", place) == 1, words
            place = text.index(f"{words}\n", place) + (0 if mark == "-" else len(words) + 1)
            text = text.replace(f"{words}\n", "", 1) if mark == "-" else text
        else:
            text = f"{text[:place]}{words}\n{text[place:]}"
            place += len(words) + 1
    return text


@pytest.fixture
def app(tmp_path, monkeypatch, flower_task):
    """The app in a fresh folder with the page's first changes, by number, and the modules of its
    package by name.
    """
    shutil.copytree(
        ROOT / "examples" / "quickstart",
        tmp_path / "my_app",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    monkeypatch.chdir(tmp_path / "my_app")
    monkeypatch.syspath_prepend(tmp_path / "my_app")

    def load(changes):
        for name, diff in zip(FILES[:changes], CHANGES, strict=False):
            file = tmp_path / "my_app" / name
            file.write_text(change(file.read_text(), diff))
        importlib.invalidate_caches()
        for name in [name for name in sys.modules if name.split(".")[0] == "quickstart"]:
            monkeypatch.delitem(sys.modules, name)
        return importlib.import_module("quickstart.client_app"), importlib.import_module(
            "quickstart.task"
        )

    yield load
    for name in [name for name in sys.modules if name.split(".")[0] == "quickstart"]:
        sys.modules.pop(name)


def a_round(client_app, task, folder, clients):
    """One round of clients with an image each, as a watched strategy has it; the network that was
    sent.
    """
    from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
    from flwr.serverapp.strategy import FedAvg

    from atsfed.watch_flower import Watched

    settings = tomllib.loads((ROOT / "examples" / "quickstart" / "pyproject.toml").read_text())[
        "tool"
    ]["flwr"]["app"]["config"]
    torch.manual_seed(1)
    net, strategy, replies = task.Net(), Watched(FedAvg(fraction_evaluate=0.0), folder), []
    sent = strategy.configure_train(
        1, ArrayRecord(net.state_dict()), ConfigRecord(), Nodes(NODE, clients)
    )
    for message in sent:
        client = message.metadata.dst_node_id - NODE
        own = {"partition-id": client, "num-partitions": clients}
        context = Context(
            1, NODE + client, own, RecordDict(), settings | {"images": 1, "batch-size": 1}
        )
        torch.manual_seed(100 + client)
        reply = client_app.app(message, context)
        replies.append(sent_by(NODE + client, reply))
    arrays, metrics = strategy.aggregate_train(1, replies)
    assert metrics["client"] == (clients - 1) / 2
    assert arrays.keys() == net.state_dict().keys()
    return net


def test_the_policy_is_added_in_three_lines():
    assert len(CHANGES) == len(FILES)
    added = [line for line in CHANGES[2].splitlines() if line.startswith("+")]
    assert len(added) == 3


@pytest.mark.parametrize("changes", [2, 3])
def test_what_is_seen_is_the_gradient_of_the_picture_that_the_client_used(app, tmp_path, changes):
    from atsfed.watch_flower import watched

    client_app, task = app(changes)
    net = a_round(client_app, task, tmp_path / "seen", 3)
    seen = watched(tmp_path / "seen", 1, task.Net(), by="client", **ONE)
    assert sorted(seen) == [0, 1, 2]
    model, data = torch.nn.Sequential(ONE["normalize"], net), atslib.load("shapes", "train")
    for client, view in seen.items():
        torch.manual_seed(100 + client)
        task.Net()
        ((images, labels),) = task.load_data(client, 1, 1)
        used = images / 2 + 0.5
        plain = (used - data.pixels[client : client + 1] / 255).abs().max() < 1e-6
        assert plain == (changes == 2)
        wanted = atslib.observe(model, used.clamp(0, 1), labels, threat=view.threat).gradients
        # A maximum of two values that differ by rounding sends its slope to either.
        assert (view.updates[0].mean_gradients - wanted).norm() < 0.01 * wanted.norm()
        assert view.threat.batch == 1
    assert len(watched(tmp_path / "seen", 1, task.Net(), **ONE)) == 3


def test_the_script_of_the_page_attacks_both_rounds(app, tmp_path, capsys):
    for changes, name in ((2, "none"), (3, "policy")):
        client_app, task = app(changes if changes == 2 else 0)
        if changes == 3:
            file = tmp_path / "my_app" / FILES[2]
            file.write_text(change(file.read_text(), CHANGES[2]))
            client_app, task = app(0)
        a_round(client_app, task, tmp_path / "my_app" / "seen" / name, 2)
    (script,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    exec(script, {"__name__": "look"})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["none", "policy"]
    assert lines[0] == "none: 100% of 2 photographs found"


def test_what_cannot_be_read_is_one_sentence(app, tmp_path):
    from atsfed.watch_flower import watched

    client_app, task = app(2)
    with refused("round-00001 was not recorded"):
        watched(tmp_path / "seen", 1, task.Net(), **ONE)
    a_round(client_app, task, tmp_path / "seen", 2)
    with refused("has no metric who", "client", "num-examples"):
        watched(tmp_path / "seen", 1, task.Net(), by="who", **ONE)
    with refused("has not the arrays of this network"):
        watched(tmp_path / "seen", 1, torch.nn.Linear(2, 2), **ONE)
