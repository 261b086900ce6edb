"""Routes: the handler of a request code, and what a node knows of such requests before they are handled."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

from dledger_broker.kernel.requests import Request
from dledger_broker.kernel.rights import ADMIN, Rights

Handler: TypeAlias = Callable[[Request], None]

ANSWER_TIMEOUT_S: Final = 10.0
"""How long a forwarded request waits for the leader's answer: more than the leader itself takes to give up."""


class Needs(Enum):
    """Who may handle a request."""

    NOTHING = auto()
    """Any node, from what it has."""
    LEADER = auto()
    """The leader only."""
    CONFIRMED_LEADER = auto()
    """A leader that a majority has confirmed since the request came."""


class Effect(NamedTuple):
    """What a request may have done at a leader that was handed it and gives no answer.

    If it `changes` something its outcome is then unknown, and later requests of its channel wait until it is answered.
    One that the leader may hold for long has its own time-out, beside how long it asks to be held, and its own answer
    after it. `again`: whether one that changes something is sent again all the same, because being handled twice is
    better for it than an unknown outcome.
    """

    changes: bool
    answer_timeout_s: float = ANSWER_TIMEOUT_S
    unanswered: Handler | None = None
    held_s: Callable[[Request], float] | None = None
    again: Callable[[Request], bool] | None = None

    def timeout_s(self, request: Request) -> float:
        """How long the leader's answer to a request is waited for."""
        return self.answer_timeout_s + (0.0 if self.held_s is None else self.held_s(request))


NO_EFFECT: Final = Effect(changes=False)
CHANGES: Final = Effect(changes=True)


class Route(NamedTuple):
    """How a request code is handled.

    `forwarded`: a node that is not the leader, or may not know enough, hands it on; else it answers by itself.
    `feature` is the name of the feature that must be active first, if any; `Parts.routes` sets it. `rights` are those
    that it asks for where access control is on. `behind_sends`: it is handled in its turn behind sends.
    """

    handler: Handler
    needs: Needs
    effect: Effect
    forwarded: bool = True
    feature: str | None = None
    rights: Rights = ADMIN
    behind_sends: bool = False
