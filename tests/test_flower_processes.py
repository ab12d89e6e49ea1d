"""A federation in real processes, over TLS and with keys: the app of `examples/flower` as its user
starts it.
"""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from atsfed import Federation, Tap, answer

pytest.importorskip("flwr", reason="the extra atslib[federated] is not installed")
pytestmark = [
    pytest.mark.federated,
    pytest.mark.alone,
    pytest.mark.usefixtures("one_thread"),
]
ROOT = Path(__file__).parent.parent
APP = ROOT / "examples" / "flower"


def processes(*words):
    """The script's exit code, output and complaints."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    told = [sys.executable, str(APP / "processes.py"), *map(str, words)]
    done = subprocess.run(told, env=env, capture_output=True, text=True, timeout=500)
    return done.returncode, done.stdout, done.stderr


def test_processes_over_tls_take_the_steps_that_plain_code_takes(tmp_path):
    code, said, complaints = processes(tmp_path / "tap", "clients=2", "rounds=1")
    assert code == 0, complaints
    assert said == "round 1: answers of clients 0, 1\n"
    federation = Federation(dataset="shapes", model="lenet-4", clients=2, batch=8, defense="3-1-7")
    tap, model = Tap(tmp_path / "tap", federation), federation.network()
    answers = [answer(federation, model, client, 1).updates[0].gradients for client in (0, 1)]
    for client in (0, 1):
        torch.testing.assert_close(
            tap.observed(1, client).gradients, answers[client], rtol=0, atol=1e-6
        )
    before, after = (
        torch.cat([value.detach().flatten() for value in network.parameters()])
        for network in (model, tap.model(2))
    )
    torch.testing.assert_close(
        after, before - federation.lr * torch.cat(answers).mean(0), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(
    ("word", "words"),
    [("defense='3-1-77'", "3-1-77"), ("klients=2", "'klients' is no name of the configuration")],
)
def test_what_cannot_be_run_is_said_in_one_sentence_before_anything_is_started(
    tmp_path, word, words
):
    code, said, complaints = processes(tmp_path / "tap", word)
    assert (code, said, complaints.count("\n")) == (1, "", 1)
    assert words in complaints
    assert not (tmp_path / "tap").exists()


def test_secret_keys_are_for_their_owner_alone_and_the_authoritys_is_kept_nowhere(
    tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(APP)
    made = importlib.import_module("processes")
    before = os.umask(0)
    try:
        made.make_keys(tmp_path, 2)
    finally:
        os.umask(before)
        for name in ("processes", "app"):
            sys.modules.pop(name, None)
    secret = {file.name for file in tmp_path.iterdir() if b"PRIVATE KEY" in file.read_bytes()}
    assert secret == {"server.key", "client-0.key", "client-1.key"}
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in secret} == {0o600}
