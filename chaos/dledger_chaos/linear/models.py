"""Models of a register and a log, one operation at a time.

A state is any hashable value but None. `UNKNOWN` stands for the answer of an operation whose end nobody saw.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, TypeAlias

from .calls import UNKNOWN, Call

Step: TypeAlias = Callable[[Hashable, Call], Hashable | None]
"""The state after an operation in a state, never None; None if it cannot have answered what it did there."""


@dataclass(frozen=True, slots=True)
class Model:
    """A sequential object: the state in which it begins, and what operations do to it."""

    name: str
    initial: Hashable
    step: Step


def _register(state: Hashable, call: Call) -> Hashable | None:
    """`read` answers the value; `write` sets `argument`; `cas` sets the second of `argument` if the first is there.

    The state is (value,), so that a register that holds None is not taken for an impossible step.
    """
    if call.f == "write":
        return (call.argument,)
    if call.f == "read":
        return state if call.answer is UNKNOWN or (call.answer,) == state else None
    assert call.f == "cas"
    assert isinstance(call.argument, tuple)
    expected, new = call.argument
    matches = state == (expected,)
    if call.answer is not UNKNOWN and call.answer is not matches:
        return None
    return (new,) if matches else state


def _log(state: Hashable, call: Call) -> Hashable | None:
    """`append` answers the place, from 0, of `argument`; `read` answers all values in order, None for none."""
    assert isinstance(state, tuple)
    if call.f == "append":
        return (*state, call.argument) if call.answer is UNKNOWN or call.answer == len(state) else None
    assert call.f == "read"
    found = () if call.answer is None else call.answer
    return state if call.answer is UNKNOWN or found == state else None


REGISTER: Final = Model("register", (None,), _register)
LOG: Final = Model("log", (), _log)
