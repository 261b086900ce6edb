"""Bugs of topics, and of consumer groups, that were deleted and made again under the same name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dledger.sim.mutants.catalogue import Catalogue
from dledger_broker import machine
from dledger_broker.state.contexts import QueueRun
from dledger_broker.state.offsets import OffsetTable
from dledger_broker.state.tables import BrokerState, QueueState, TopicState
from dledger_broker.views import dispatch
from dledger_broker.views.queries import Queries
from dledger_remoting.record import MessageRecord

CATALOGUE = Catalogue("broker")

# ---------------------------------------------------------------- the state


CATALOGUE.add(
    "deleted-topic-keeps-offsets",
    "a deleted topic takes its committed offsets along",
    (OffsetTable, "remove_topic", lambda _self, _topic: None),
)


CATALOGUE.add(
    "deleted-group-keeps-offsets",
    "a deleted consumer group takes its committed offsets along, if asked",
    (OffsetTable, "remove_group", lambda _self, _group: None),
)


CATALOGUE.add(
    "deleted-topic-not-dropped",
    "who holds a queue learns that it is gone with its topic",
    (TopicState, "drop", lambda _self: None),
)

# ---------------------------------------------------------------- views


def _redispatch_all(
    runs: Iterable[QueueRun], state: BrokerState, start_over: Callable[[QueueState, int], None]
) -> list[QueueState]:
    created = {topic: topic.created_position for topic in state.topics.values()}
    try:
        for topic in created:
            topic.created_position = 0
        return _real_redispatch(runs, state, start_over)
    finally:
        for topic, position in created.items():
            topic.created_position = position


_real_redispatch = dispatch.redispatch

CATALOGUE.add(
    "views-rebuilt-across-a-deletion",
    "what is rebuilt of a queue is of the topic that has the name now",
    (machine, "redispatch", _redispatch_all),
)


async def _is_in_the_log(self: Queries, record: MessageRecord) -> bool:
    return record.topic in self._state().topics


CATALOGUE.add(
    "message-of-a-deleted-topic-found",
    "nothing of a deleted topic is found, though the log has it still",
    (Queries, "_is_listed", _is_in_the_log),
)
