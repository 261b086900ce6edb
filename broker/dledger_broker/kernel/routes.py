"""Routes: the handler of each request code, and properties of its requests that are known before they are handled."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

from dledger_broker.kernel.requests import Request
from dledger_broker.kernel.rights import ADMIN, Rights

Handler: TypeAlias = Callable[[Request], None]

ANSWER_TIMEOUT_S: Final = 10.0
"""Time limit in seconds for the leader's answer to a forwarded request: more than the leader itself takes to give
up.
"""


class Needs(Enum):
    """Requirement on the node that handles a request."""

    NOTHING = auto()
    """Any node handles it, from its own state."""
    LEADER = auto()
    """Only the leader handles it."""
    CONFIRMED_LEADER = auto()
    """The request needs a leader that a majority has confirmed since the request arrived."""


class Effect(NamedTuple):
    """Possible effect of a request on a leader that got it and does not answer.

    - `changes`: the request may have changed something. Its outcome is then unknown, and later requests of its channel
      wait until it is answered.
    - `answer_timeout_s`, `held_s`: time limit for the answer, and the additional time for which the request is to be
      held.
    - `unanswered`: handler that answers after the time limit, for a request that the leader may hold for long.
    - `again`: decides whether a request that changes something is sent again all the same, because handling it twice is
      better than an unknown outcome.
    - `for_client`: the request is not handled once its client is gone. Nobody reads its answer, or it is about the
      connection.
    """

    changes: bool
    answer_timeout_s: float = ANSWER_TIMEOUT_S
    unanswered: Handler | None = None
    held_s: Callable[[Request], float] | None = None
    again: Callable[[Request], bool] | None = None
    for_client: bool = False

    def timeout_s(self, request: Request) -> float:
        """Return the time limit in seconds for the leader's answer to a request."""
        return self.answer_timeout_s + (0.0 if self.held_s is None else self.held_s(request))


NO_EFFECT: Final = Effect(changes=False, for_client=True)
CHANGES: Final = Effect(changes=True)
INTRODUCES: Final = Effect(changes=True, for_client=True)


class Route(NamedTuple):
    """Handling of a request code.

    - `forwarded`: a node that is not the leader, or may not know enough, forwards it. Otherwise that node answers by
      itself.
    - `feature`: name of the feature that must be active first, if any. `Parts.routes` sets it.
    - `rights`: the rights that it needs if access control is on.
    - `behind_sends`: it is handled in its turn behind sends.
    """

    handler: Handler
    needs: Needs
    effect: Effect
    forwarded: bool = True
    feature: str | None = None
    rights: Rights = ADMIN
    behind_sends: bool = False
