"""Fixtures that several files share: stores in temporary folders, and a single thread."""

import gc

import pytest
import torch

from atslib.store import Store


@pytest.fixture
def said():
    """The lines that `store` says."""
    return []


@pytest.fixture
def store(tmp_path, said):
    return Store(tmp_path / "store", say=said.append)


@pytest.fixture(scope="session")
def smoke_store(tmp_path_factory):
    """A folder for the artifacts of profile smoke: the first test that needs them computes them."""
    return tmp_path_factory.mktemp("smoke")


@pytest.fixture(scope="module")
def one_thread():
    """Small images gain nothing from more threads, and lose much when the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_leftovers():
    """Jupyter's clients leave an event loop to the garbage collector; it goes while the test's own filters hold."""
    yield
    gc.collect()
