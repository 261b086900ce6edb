"""Models of a register and a log, one operation at a time.

A state is any hashable value but None. `UNKNOWN` is the answer of an operation whose end was not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, TypeAlias

from .calls import UNKNOWN, Call

Step: TypeAlias = Callable[[Hashable, Call], Hashable | None]
"""Returns the state after an operation in a state, or None if the operation's answer is impossible in that state."""


@dataclass(frozen=True, slots=True)
class Model:
    """A sequential object: its initial state, and the effect of operations on its state."""

    name: str
    initial: Hashable
    step: Step


def _step_register(state: Hashable, call: Call) -> Hashable | None:
    """Apply `read`, `write` of `argument`, or `cas`, which replaces the first value of `argument` by the second.

    The state is (value,), because None as a state means an impossible step.
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


def _step_log(state: Hashable, call: Call) -> Hashable | None:
    """Apply `append`, which returns the index of `argument`, or `read`, which returns all values in order, or None."""
    assert isinstance(state, tuple)
    if call.f == "append":
        return (*state, call.argument) if call.answer is UNKNOWN or call.answer == len(state) else None
    assert call.f == "read"
    values = () if call.answer is None else call.answer
    return state if call.answer is UNKNOWN or values == state else None


REGISTER: Final = Model("register", (None,), _step_register)
LOG: Final = Model("log", (), _step_log)
