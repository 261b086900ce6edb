"""Broken promise, as the simulator tells of it."""

from __future__ import annotations


class Violation(BaseException):
    """A promise is broken: which one, and how.

    No `Exception`: the code that is judged answers those, and runs on.
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
