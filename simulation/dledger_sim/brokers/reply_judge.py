"""Judge of replies: which of them requesters got, beside what repliers sent and were told.

A reply comes to the client that it is for, as it was sent. A replier that is told so has been heard. One that the
leader itself told how that went is not heard twice, nor after it was told that it is not. What another node passed on
may have come twice, for that repeats what has no effect in the log: requesters take the first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from dledger_sim.log.invariants import require

MOST_WAITING: Final = 20
"""Requests that repliers choose from."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: who waits for a reply to it, and its name."""

    client: str
    correlation: str


@dataclass(slots=True)
class _Sent:
    """A reply: what it is for, and what became of it as far as anybody was told."""

    to: Asked
    arrivals: int = 0
    most: int | None = None
    """How often it comes at the most, once its replier was told."""


class ReplyJudge:
    """Told of all requests and replies of a seed; replies are known by numbers."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._sent: dict[int, _Sent] = {}
        self._asked: set[Asked] = set()
        self.waiting: list[Asked] = []
        """The latest requests."""

    def ask(self, asked: Asked) -> None:
        """A client waits for a reply."""
        self._asked.add(asked)
        self.waiting = [*self.waiting[1 - MOST_WAITING :], asked]

    def sent(self, to: Asked, number: int) -> None:
        """A replier sends a reply."""
        self._sent[number] = _Sent(to)

    def arrived(self, at: Asked, number: int) -> None:
        """A client has got a reply, which says to what it is one."""
        sent = self._sent.get(number)
        require(sent is not None, "every reply is one that was sent", number=number)
        assert sent is not None
        require(at in self._asked, "a reply comes to the client that waits for it", at=at, number=number)
        require(at == sent.to, "a reply comes as it was sent", at=at, to=sent.to, number=number)
        sent.arrivals += 1
        self._counts["reply arrived"] += 1
        self._counts["reply arrived again"] += sent.arrivals > 1
        self._judge(number, sent)

    def heard(self, number: int, *, is_direct: bool) -> None:
        """A replier was told that its reply has arrived."""
        sent = self._sent[number]
        require(sent.arrivals > 0, "a replier that is told so was heard", number=number, to=sent.to)
        self._counts["replier told that it was heard"] += 1
        if is_direct:
            sent.most = 1
            self._judge(number, sent)

    def refused(self, number: int, code: int) -> None:
        """A replier was told by the leader that its reply has not arrived, and will not."""
        sent = self._sent[number]
        sent.most = 0
        self._counts[f"reply refused with {code}"] += 1
        self._judge(number, sent)

    def _judge(self, number: int, sent: _Sent) -> None:
        enough = sent.most is None or sent.arrivals <= sent.most
        require(enough, "a reply does not come again, nor once it was refused", number=number, sent=sent)
