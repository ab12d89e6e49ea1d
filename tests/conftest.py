"""Fixtures that several files share: stores in temporary folders."""

import pytest

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
