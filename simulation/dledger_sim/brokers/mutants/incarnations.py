"""Bugs of topics and consumer groups that were deleted and made again under the same name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.features.offsets.table import OffsetTable
from dledger_broker.kernel import applying_records, machine
from dledger_broker.kernel.contexts import Done, QueueRun
from dledger_broker.kernel.lookup import Lookup
from dledger_broker.kernel.queues import TopicState
from dledger_broker.kernel.topics import TopicTable
from dledger_broker.views.queueview import QueueView
from dledger_broker.views.unitreader import QueueFileReader
from dledger_remoting.record import MessageRecord
from dledger_sim.brokers.schedules import trims
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("broker")

# ---------------------------------------------------------------- the state


CATALOGUE.add(
    "deleted-topic-keeps-offsets",
    "the deletion of a topic deletes its committed offsets",
    (OffsetTable, "on_topic_deleted", lambda _self, _topic: None),
)


CATALOGUE.add(
    "deleted-group-keeps-offsets",
    "the deletion of a consumer group deletes its committed offsets, if requested",
    (OffsetTable, "on_group_deleted", lambda _self, _group, **_how: None),
)


def _trim_whatever_has_the_name(
    self: TopicTable, name: str, created_position: int, queue_id: int, first_offset: int
) -> None:
    topic = self.by_name.get(name)
    _real_trim_queue(self, name, created_position if topic is None else topic.created_position, queue_id, first_offset)


_real_trim_queue = TopicTable.trim_queue

CATALOGUE.add(
    "trim-of-an-earlier-topic",
    "a trim that was computed before a topic was created again removes nothing of the topic",
    (TopicTable, "trim_queue", _trim_whatever_has_the_name),
    schedule=trims.trim_of_a_topic_that_was_made_anew,
)


CATALOGUE.add(
    "deleted-topic-not-dropped",
    "every holder of a queue learns that the queue is gone with its topic",
    (TopicState, "drop", lambda _self: None),
)


def _delete_group_only(self: GroupProposals, name: str, done: Done, *, clean_offsets: bool = False) -> None:
    events = self._changes._overlay.events  # noqa: SLF001 - patches private names
    prepare, events.prepare_deletion = events.prepare_deletion, ()
    try:
        _real_delete_group(self, name, done, clean_offsets=clean_offsets)
    finally:
        events.prepare_deletion = prepare


_real_delete_group = GroupProposals.delete_group

CATALOGUE.add(
    "commit-behind-a-group-deletion",
    "a commit from before the deletion of a consumer group is not proposed behind the deletion",
    (GroupProposals, "delete_group", _delete_group_only),
)


CATALOGUE.add(
    "group-deletion-not-waited-for",
    "no offset is committed for a consumer group whose deletion is in flight",
    (GroupProposals, "has_group", lambda self, name: name in self._groups),
)

# ---------------------------------------------------------------- views


def _redispatch_all(
    runs: Iterable[QueueRun], topics: TopicTable, start_over: Callable[[QueueView, int], None]
) -> list[QueueView]:
    created = {topic: topic.created_position for topic in topics.by_name.values()}
    try:
        for topic in created:
            topic.created_position = 0
        return _real_redispatch(runs, topics, start_over)
    finally:
        for topic, position in created.items():
            topic.created_position = position


_real_redispatch = applying_records.redispatch

CATALOGUE.add(
    "views-rebuilt-across-a-deletion",
    "a rebuilt queue has only messages of the topic that has the name now",
    (machine, "redispatch", _redispatch_all),
)


CATALOGUE.add(
    "file-kept-open-under-its-name",
    "no file of a deleted topic is read under a name that another topic has by now",
    (QueueFileReader, "forget", lambda _self, _directory: None),
)


async def _is_in_the_log(self: Lookup, record: MessageRecord) -> bool:
    return record.topic in self._replica.state.topics


CATALOGUE.add(
    "message-of-a-deleted-topic-found",
    "no message of a deleted topic is found, even if the log still has it",
    (Lookup, "is_listed", _is_in_the_log),
)
