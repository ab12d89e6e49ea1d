"""The one error a user of atslib meets names the value, the rule and what is allowed; a pause is no error."""


class AtsError(ValueError):
    """A wrong input, said in one sentence. In a notebook only the sentence shows, not our call stack."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class NotKept(AtsError):
    """What was asked for is too large for the archive of evidence, which holds the rest of the unit of work."""


class OutOfTime(Exception):
    """The time given to a long computation is over; its state is kept, and another call goes on with it."""


def choose(what: str, value: object, allowed: object) -> None:
    """Raise `AtsError` unless `value` is one of `allowed` (any container that can be listed)."""
    if value not in allowed:
        raise AtsError(f"{what} {value!r} is unknown; choose one of {', '.join(map(str, allowed))}")
