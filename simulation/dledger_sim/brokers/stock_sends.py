"""Judge of the answers to stock producers, mainly for write aliases."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.message_bodies import position_in
from dledger_sim.brokers.name_server import NameServer
from dledger_sim.log.invariants import require


class Place(NamedTuple):
    """Place to which a producer may send: a queue of a broker in the route."""

    broker: str
    node: str
    queue_id: int
    alias: int | None


@dataclass(slots=True)
class StockSends:
    """Sends of all stock producers of a seed, and the name server of their routes."""

    name_server: NameServer = field(default_factory=NameServer)
    attempts: Counter[int] = field(default_factory=Counter)
    """Number of attempts of each send, by its first operation."""
    _taken: set[int] = field(default_factory=set)
    """Positions in the log that an answer has named."""

    def acknowledged(self, place: Place, queue_count: int, answer: Answer) -> int:
        """Check the answer to a successful send, and return the queue in which its messages were stored.

        For an alias, the queue follows from the alias's number.
        """
        queue_id = place.queue_id if place.alias is None else place.alias % queue_count
        answered_queue = int(answer.ext["queueId"])
        require(
            answered_queue == queue_id,
            "a message that an alias takes goes to its queue",
            place=place,
            told=answered_queue,
            expected=queue_id,
        )
        for identity in answer.ext["msgId"].split(","):
            position = position_in(identity)
            require(position not in self._taken, "each acknowledged send has a message of its own", position=position)
            self._taken.add(position)
        return queue_id

    def check_copies(self, copies: Counter[int], repeated: int) -> None:
        """Check that a message is stored at most once per attempt, and once more each time that a node resent it.

        `copies` has the number of stored copies beyond the first of each message.
        """
        extra = {one: copies[one] + 1 - tries for one, tries in self.attempts.items() if copies[one] >= tries}
        require(
            sum(extra.values()) <= repeated,
            "a message is stored no more often than it was sent",
            extra=extra,
            sent_on_again=repeated,
        )
