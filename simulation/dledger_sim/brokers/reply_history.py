"""History of simulated requesters and repliers, for the check that chaos runs have, too (`dledger_sim.seen.replies`).

If a replier gets a success, its reply has arrived. If the leader itself gave the outcome, the reply does not arrive
twice, nor after a refusal. A forwarded reply may arrive twice: forwarding repeats requests that have no effect in the
log. Requesters take the first reply.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import msgspec

from dledger_sim.log.violation import require
from dledger_sim.seen.history import Operation, Outcome
from dledger_sim.seen.replies import Answered, Replied, check_replies

MOST_WAITING: Final = 20
"""Maximum number of requests from which repliers choose."""
NAME: Final = "replies"


@dataclass(frozen=True, slots=True)
class Asked:
    """Request: the client that waits for a reply, and the correlation id."""

    client: str
    correlation: str

    def __str__(self) -> str:
        return f"{self.correlation} of {self.client}"


class ReplyHistory:
    """All requests and replies of a seed, and the arrivals of replies. Replies are identified by numbers.

    Moments are seconds of the simulated clock.
    """

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._operations: list[Operation] = []
        self._requests: dict[Asked, int] = {}
        """Index of the operation of each request."""
        self._replies: dict[int, int] = {}
        """Index of the operation of each reply."""
        self._arrivals: Counter[int] = Counter()
        self.waiting: list[Asked] = []
        """Latest requests."""

    def ask(self, asked: Asked, moment: float) -> None:
        """Note that a client waits for a reply."""
        self._requests[asked] = self._add("request", asked.client, "", str(asked), moment)
        self.waiting = [*self.waiting[1 - MOST_WAITING :], asked]

    def sent(self, to: Asked, number: int, replier: str, moment: float) -> None:
        """Note that a replier sends a reply."""
        self._replies[number] = self._add("reply", replier, str(to), str(number), moment)

    def arrived(self, at: Asked, number: int, moment: float) -> None:
        """Note that a reply has arrived at a client. The first ends its request."""
        self._add("arrive", at.client, str(at), str(number), moment)
        self._arrivals[number] += 1
        self._counts["reply arrived"] += 1
        self._counts["reply arrived again"] += self._arrivals[number] > 1
        request = self._requests.get(at)
        if request is not None and self._operations[request].outcome == "info":
            self._end(request, "ok", moment, Replied(str(number)))

    def heard(self, number: int, moment: float, *, is_direct: bool) -> None:
        """Note that a replier was told that its reply has arrived."""
        self._end(self._replies[number], "ok", moment, Answered(is_direct))
        self._counts["replier told that it was heard"] += 1

    def refused(self, number: int, code: int, moment: float) -> None:
        """Note that the leader itself has refused a reply."""
        self._end(self._replies[number], "fail", moment, Answered(direct=True))
        self._counts[f"reply refused with {code}"] += 1

    def check(self, moment: float) -> None:
        """Check what clients have seen until now. Raises `Violation`."""
        for request in self._requests.values():
            if self._operations[request].outcome == "info":
                self._end(request, "info", moment, Replied(waited=True))
        judgement = check_replies(self._operations, sees_all=True)
        promise = "a request ends with its own reply; if a replier is answered 0, its reply was delivered"
        require(judgement.result != "invalid", promise, found="; ".join(judgement.examples))

    def _add(self, f: str, process: str, key: str, value: str, moment: float) -> int:
        number = len(self._operations)
        self._operations.append(Operation(number, NAME, process, f, key, value, "info", _ns(moment)))
        return number

    def _end(self, number: int, outcome: Outcome, moment: float, extras: Replied | Answered) -> None:
        self._operations[number] = msgspec.structs.replace(
            self._operations[number],
            outcome=outcome,
            complete_ns=_ns(moment),
            extras=msgspec.structs.asdict(extras),
        )


def _ns(moment: float) -> int:
    return round(moment * 1e9)
