"""Violations: how the simulator reports a broken promise."""

from __future__ import annotations


class Violation(BaseException):
    """A promise is broken. `promise` names it, and `detail` describes how.

    This is no subclass of `Exception`: the code under test catches those and continues.
    """

    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(promise, detail)
        self.promise = promise
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.promise}: {self.detail}"


def require(condition: object, promise: str, **facts: object) -> None:
    """Raise `Violation` unless `condition` holds."""
    if not condition:
        raise Violation(promise, ", ".join(f"{name}={value}" for name, value in facts.items()))


class PlannedFailureError(Exception):
    """Planned failure of a client's program, drawn from the seed."""
