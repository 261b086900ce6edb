"""From committed records to queues: the only way in which a view learns of a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from dledger.invariants import invariant
from dledger.statemachine import CommittedEntry
from dledger_broker.state.contexts import StagedRecord
from dledger_broker.state.tables import BrokerState, QueueState
from dledger_remoting.properties import TAGS, find_property
from dledger_remoting.record import queue_refs
from dledger_remoting.tags import tag_code

_TAGS = TAGS.encode()
_TAGS_MARK = _TAGS + b"\x01"


def tag_code_of(properties: bytes) -> int:
    """The tag code that a consume queue holds for a record with these properties; 0 without a tag."""
    if _TAGS_MARK not in properties:
        return 0
    tag = find_property(properties, _TAGS)
    return _code_of(tag) if tag else 0


@lru_cache(maxsize=4096)
def _code_of(tag: bytes) -> int:
    return tag_code(tag.decode(errors="replace"))


def scan_entry(state: BrokerState, entry: CommittedEntry) -> list[StagedRecord]:
    """The records of an entry whose topic exists, as the leader would list them."""
    topics = state.topics_by_bytes
    base = entry.records_position
    records: list[StagedRecord] = []
    for place, size, topic_name, queue_id, queue_offset, properties in queue_refs(entry.records):
        topic = topics.get(topic_name)
        if topic is not None:
            queue = topic.queues.get(queue_id) or topic.queue(queue_id)
            code = tag_code_of(properties) if _TAGS_MARK in properties else 0
            records.append((queue, queue_offset, base + place, size, code))
    return records


def dispatch(records: Iterable[StagedRecord], batch: int, touched: list[QueueState]) -> None:
    """Append records to their queues, and queues that `batch` had not touched yet to `touched`.

    A record of a topic that was deleted meanwhile is ignored.
    """
    for queue, queue_offset, position, size, code in records:
        if queue.next_offset != queue_offset:
            invariant(queue.dropped, "a record has its queue's next offset", queue=queue, queue_offset=queue_offset)
            continue
        queue.next_offset = queue_offset + 1
        queue.view.append(position, size, code)
        if queue.batch != batch:
            queue.batch = batch
            touched.append(queue)


def redispatch(
    records: Iterable[StagedRecord], state: BrokerState, batch: int, start_over: Callable[[QueueState, int], None]
) -> list[QueueState]:
    """Append to the views what they lack of records that the state already covers; returns the queues it touched.

    Where the log no longer holds what would join a record to the units before it, `start_over(queue, offset)` must
    empty the view.
    """
    touched: list[QueueState] = []
    for queue, queue_offset, position, size, code in records:
        view = queue.view
        if position < state.topics[queue.topic].created_position or queue_offset < max(view.end, queue.first_offset):
            continue
        if queue_offset > view.end:
            start_over(queue, queue_offset)
        view.append(position, size, code)
        if queue.batch != batch:
            queue.batch = batch
            touched.append(queue)
    return touched
