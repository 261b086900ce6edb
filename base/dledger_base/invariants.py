"""Assertions that stay on in production."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class InvariantError(AssertionError):
    """A promise of the code to itself does not hold. The replica must not continue."""


def invariant(condition: object, what: str, **facts: object) -> None:
    """Raise `InvariantError` with `what` and all `facts` unless `condition` holds."""
    if not condition:
        detail = ", ".join(f"{name}={value!r}" for name, value in facts.items())
        raise InvariantError(f"{what}{': ' + detail if detail else ''}")


def known(value: T | None, what: str, **facts: object) -> T:
    """Return `value`, which must not be None; raises as `invariant` does."""
    invariant(value is not None, what, **facts)
    assert value is not None
    return value
