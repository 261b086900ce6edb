"""Judge of what stock producers are told, of write aliases above all."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.message_bodies import position_in
from dledger_sim.brokers.name_server import NameServer
from dledger_sim.log.invariants import require


class Place(NamedTuple):
    """Where a producer may send to: a broker of the route, whose queue `queue_id` is."""

    broker: str
    node: str
    queue_id: int
    alias: int | None


@dataclass(slots=True)
class StockSends:
    """What all stock producers of a seed have sent, and where clients learn of routes."""

    name_server: NameServer = field(default_factory=NameServer)
    attempts: Counter[int] = field(default_factory=Counter)
    """How often a send was tried, by its first operation."""
    _taken: set[int] = field(default_factory=set)
    """Positions in the log that an answer has named."""

    def acknowledged(self, place: Place, queue_count: int, answer: Answer) -> int:
        """The queue that a send was stored in: of an alias it follows from the number of that."""
        queue_id = place.queue_id if place.alias is None else place.alias % queue_count
        told = int(answer.ext["queueId"])
        require(told == queue_id, "what an alias takes goes to its queue", place=place, told=told, expected=queue_id)
        for identity in answer.ext["msgId"].split(","):
            position = position_in(identity)
            require(position not in self._taken, "each acknowledged send has a message of its own", position=position)
            self._taken.add(position)
        return queue_id

    def check_copies(self, copies: Counter[int], repeated: int) -> None:
        """A message is stored once for each attempt, and once more for each time that a node sent it on again."""
        extra = {one: copies[one] + 1 - tries for one, tries in self.attempts.items() if copies[one] >= tries}
        require(
            sum(extra.values()) <= repeated,
            "a message is stored no more often than it was sent",
            extra=extra,
            sent_on_again=repeated,
        )
