"""Application of committed records to queues. Views learn of messages only here."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dledger.statemachine import CommittedEntry
from dledger_base.invariants import invariant
from dledger_broker.kernel.contexts import QueueRun
from dledger_broker.kernel.queues import QueueState, TopicState
from dledger_broker.kernel.topics import TopicTable
from dledger_broker.views.queueview import QueueView
from dledger_broker.views.scan import scan_runs
from dledger_broker.views.units import UNIT_BYTES


def scan_entry(topics: TopicTable, entry: CommittedEntry) -> list[QueueRun]:
    """Return the runs of an entry's records whose topic exists, in the form in which the leader lists them."""
    by_bytes = topics.by_bytes
    runs: list[QueueRun] = []
    name: bytes | None = None
    topic: TopicState | None = None
    for topic_name, queue_id, end_offset, units in scan_runs(entry.records, entry.records_position):
        if topic_name is not name:
            name, topic = topic_name, by_bytes.get(topic_name)
        if topic is not None:
            runs.append((topic.queues.get(queue_id) or topic.queue(queue_id), end_offset, units))
    return runs


def dispatch(runs: Iterable[QueueRun], touched: list[QueueState]) -> None:
    """Append runs to their queues, and the queue of each run to `touched`.

    A run of a topic that was deleted meanwhile is ignored.
    """
    for queue, end_offset, units in runs:
        if end_offset - queue.next_offset != len(units) // UNIT_BYTES:
            invariant(queue.dropped, "a record has its queue's next offset", queue=queue, end_offset=end_offset)
            continue
        queue.next_offset = end_offset
        queue.view.tail += units
        touched.append(queue)


def redispatch(
    runs: Iterable[QueueRun], topics: TopicTable, start_over: Callable[[QueueView, int], None]
) -> list[QueueView]:
    """Append to the views the units that they lack of runs that the state already covers. Return the view of each of
    these runs.

    If the log no longer holds the records between a view's last unit and a run, `start_over(view, offset)` must empty
    the view.
    """
    touched: list[QueueView] = []
    for queue, end_offset, units in runs:
        view = queue.view
        # A topic's creation ends an entry: all records of one entry belong to the same incarnation.
        if int.from_bytes(units[:8], "big") < topics.by_name[queue.topic].created_position:
            continue
        queue_offset = end_offset - len(units) // UNIT_BYTES
        held = max(view.end, queue.first_offset) - queue_offset
        if held > 0:
            units = units[held * UNIT_BYTES :]
            queue_offset += held
        if not units:
            continue
        if queue_offset > view.end:
            start_over(view, queue_offset)
        view.tail += units
        touched.append(view)
    return touched
