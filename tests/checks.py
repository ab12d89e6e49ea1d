"""A check that many files of tests make."""

from contextlib import contextmanager

import pytest

from atslib.errors import AtsError


@contextmanager
def refused(*parts):
    """What is done within ends in an `AtsError`: one line that holds all of these parts."""
    with pytest.raises(AtsError) as error:
        yield
    said = str(error.value)
    assert all(part in said for part in parts), said
    assert "\n" not in said, said
