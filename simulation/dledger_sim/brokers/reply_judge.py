"""Judge of replies: compares the replies that requesters got with the replies that repliers sent, and with the answers.

A reply comes unchanged to its own client. If a replier gets a success, its reply has arrived. If the leader itself gave
the outcome, the reply does not arrive twice, nor after a refusal. A forwarded reply may arrive twice: forwarding
repeats requests that have no effect in the log. Requesters take the first reply.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from dledger_sim.log.invariants import require

MOST_WAITING: Final = 20
"""Maximum number of requests from which repliers choose."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Request: the client that waits for a reply, and the correlation id."""

    client: str
    correlation: str


@dataclass(slots=True)
class _Reply:
    """Reply: its request, and its outcome if an answer gave it."""

    to: Asked
    arrivals: int = 0
    max_arrivals: int | None = None
    """Maximum number of arrivals, once its replier has an answer."""


class ReplyJudge:
    """Judge of all requests and replies of a seed. Replies are identified by numbers."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._replies: dict[int, _Reply] = {}
        self._requests: set[Asked] = set()
        self.waiting: list[Asked] = []
        """Latest requests."""

    def ask(self, asked: Asked) -> None:
        """Note that a client waits for a reply."""
        self._requests.add(asked)
        self.waiting = [*self.waiting[1 - MOST_WAITING :], asked]

    def sent(self, to: Asked, number: int) -> None:
        """Note that a replier sends a reply."""
        self._replies[number] = _Reply(to)

    def arrived(self, at: Asked, number: int) -> None:
        """Check a reply that has arrived at a client, which knows its request."""
        reply = self._replies.get(number)
        require(reply is not None, "every reply was sent by a replier", number=number)
        assert reply is not None
        require(at in self._requests, "a reply reaches the client that waits for it", at=at, number=number)
        require(at == reply.to, "a reply arrives as it was sent", at=at, to=reply.to, number=number)
        reply.arrivals += 1
        self._counts["reply arrived"] += 1
        self._counts["reply arrived again"] += reply.arrivals > 1
        self._judge(number, reply)

    def heard(self, number: int, *, is_direct: bool) -> None:
        """Check a reply whose replier was told that it arrived."""
        reply = self._replies[number]
        require(reply.arrivals > 0, "if a replier is answered 0, its reply was delivered", number=number, to=reply.to)
        self._counts["replier told that it was heard"] += 1
        if is_direct:
            reply.max_arrivals = 1
            self._judge(number, reply)

    def refused(self, number: int, code: int) -> None:
        """Check a reply that the leader has refused: it must not arrive."""
        reply = self._replies[number]
        reply.max_arrivals = 0
        self._counts[f"reply refused with {code}"] += 1
        self._judge(number, reply)

    def _judge(self, number: int, reply: _Reply) -> None:
        enough = reply.max_arrivals is None or reply.arrivals <= reply.max_arrivals
        require(enough, "a reply does not arrive twice, nor after it was refused", number=number, sent=reply)
