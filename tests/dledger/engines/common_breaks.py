"""Known bugs in the parts that both engines share."""

from collections.abc import Callable
from typing import Any

import pytest

from dledger.consensus.peers import Mode
from dledger.core.messages import TimeoutNow
from dledger.core.progress import Progress
from dledger.types import ReplicaId

Break = Callable[[pytest.MonkeyPatch], None]


def instead_of(owner: type, name: str) -> Callable[[Callable[..., Any]], Break]:
    """Make a break of a function that is called instead of a method, and is given the real method first."""

    def made(function: Callable[..., Any]) -> Break:
        def broken(patch: pytest.MonkeyPatch) -> None:
            real = getattr(owner, name)
            patch.setattr(owner, name, lambda *arguments, **named: function(real, *arguments, **named))

        broken.__name__ = function.__name__
        return broken

    return made


@instead_of(Progress, "note_accepted")
def any_answer_ends_a_probe(real: Any, one: Progress, verified_index: int, base_index: int, now: float) -> None:
    """Treat any acknowledgement as the answer to a probe, also if it covers less than the probe asked for."""
    if one.mode is Mode.PROBE:
        one.restart(verified_index + 1, Mode.STREAM)
    real(one, verified_index, base_index, now)


def anyone_hands_over(owner: type) -> Break:
    @instead_of(owner, "step")
    def anyone_hands_over(real: Any, one: Any, sender: ReplicaId, message: object, *more: object) -> None:
        if isinstance(message, TimeoutNow) and message.term == one.term and one.leader is not None:
            sender = one.leader
        real(one, sender, message, *more)

    return anyone_hands_over


def who_led_hands_over(owner: type) -> Break:
    @instead_of(owner, "step")
    def who_led_hands_over(real: Any, one: Any, sender: ReplicaId, message: object, *more: object) -> None:
        if isinstance(message, TimeoutNow) and message.term < one.term and one.leader is not None:
            sender, message = one.leader, TimeoutNow(one.term)
        real(one, sender, message, *more)

    return who_led_hands_over


def a_truncation_keeps_what_was_durable(owner: type, name: str) -> Break:
    @instead_of(owner, name)
    def a_truncation_keeps_what_was_durable(real: Any, one: Any, place: int) -> None:
        durable = one.durable_index
        real(one, place)
        one.durable_index = durable

    return a_truncation_keeps_what_was_durable
