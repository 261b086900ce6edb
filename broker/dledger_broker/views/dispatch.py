"""From committed records to queues: the only way in which a view learns of a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dledger.invariants import invariant
from dledger.statemachine import CommittedEntry
from dledger_broker.state.contexts import QueueRun
from dledger_broker.state.tables import BrokerState, QueueState
from dledger_broker.views.scan import scan_runs
from dledger_broker.views.units import UNIT_BYTES


def scan_entry(state: BrokerState, entry: CommittedEntry) -> list[QueueRun]:
    """The records of an entry whose topic exists, as the leader would list them."""
    topics = state.topics_by_bytes
    runs: list[QueueRun] = []
    for topic_name, queue_id, queue_offset, units in scan_runs(entry.records, entry.records_position):
        topic = topics.get(topic_name)
        if topic is not None:
            runs.append((topic.queues.get(queue_id) or topic.queue(queue_id), queue_offset, units))
    return runs


def dispatch(runs: Iterable[QueueRun], batch: int, touched: list[QueueState]) -> None:
    """Append runs to their queues, and queues that `batch` had not touched yet to `touched`.

    A run of a topic that was deleted meanwhile is ignored.
    """
    for queue, queue_offset, units in runs:
        if queue.next_offset != queue_offset:
            invariant(queue.dropped, "a record has its queue's next offset", queue=queue, queue_offset=queue_offset)
            continue
        queue.next_offset = queue_offset + len(units) // UNIT_BYTES
        queue.view.append(units)
        if queue.batch != batch:
            queue.batch = batch
            touched.append(queue)


def redispatch(
    runs: Iterable[QueueRun], state: BrokerState, batch: int, start_over: Callable[[QueueState, int], None]
) -> list[QueueState]:
    """Append to the views what they lack of runs that the state already covers; returns the queues it touched.

    Where the log no longer holds what would join a run to the units before it, `start_over(queue, offset)` must
    empty the view.
    """
    touched: list[QueueState] = []
    for queue, queue_offset, units in runs:
        view = queue.view
        # A topic's creation ends an entry: all records of one entry belong to the same incarnation.
        if int.from_bytes(units[:8], "big") < state.topics[queue.topic].created_position:
            continue
        held = max(view.end, queue.first_offset) - queue_offset
        if held > 0:
            units = units[held * UNIT_BYTES :]
            queue_offset += held
        if not units:
            continue
        if queue_offset > view.end:
            start_over(queue, queue_offset)
        view.append(units)
        if queue.batch != batch:
            queue.batch = batch
            touched.append(queue)
    return touched
