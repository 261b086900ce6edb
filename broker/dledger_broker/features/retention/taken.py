"""Account of one trim: the number of messages and bytes that it drops, and the reasons."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from dledger_broker.features.retention.policy import BEGUN_BEFORE, BY_DISK, TrimPart
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.machine import BrokerMachine

_logger = logging.getLogger(__name__)

QueueKey: TypeAlias = tuple[str, int, int]
"""Topic, the topic's created position, queue id."""


class Taken:
    """Counter of the messages that a trim of the log drops from all queues, part by part.

    `look` blocks and runs on a worker. All other methods run on the event loop.
    """

    def __init__(self, machine: BrokerMachine, position: int, parts: Sequence[TrimPart]) -> None:
        """Count for `parts`, which end at `position`.

        A trim without parts was begun by an earlier leader for an unknown reason.
        """
        self._parts = parts or (TrimPart(BEGUN_BEFORE, position),)
        self._first_position = machine.log.first_position
        self._begins: dict[QueueKey, int] = {}
        self._searches: list[tuple[QueueKey, Callable[[], int]]] = []
        self._bounds: dict[QueueKey, list[int]] = {}
        self._messages = [0] * len(self._parts)
        for name, topic in machine.state.topics.items():
            for queue in topic.queues.values():
                if queue.min_offset < queue.max_offset:
                    key = name, topic.created_position, queue.queue_id
                    self._begins[key] = queue.min_offset
                    for part in self._parts[:-1]:
                        search = machine.queues.first_kept(
                            queue.view, queue.min_offset, part.end, machine.log.read_blocking
                        )
                        self._searches.append((key, search))

    def look(self) -> None:
        """Find the ends of the parts in the queues. The last part ends with the trim."""
        for key, search in self._searches:
            self._bounds.setdefault(key, []).append(search())

    def end_at(self, rows: Iterable[tuple[str, int, int, int]]) -> None:
        """Count the messages below the offsets at which the queues begin after the trim."""
        for name, created, queue_id, first_offset in rows:
            key = name, created, queue_id
            begin = self._begins.get(key, first_offset)
            for number, end in enumerate([*self._bounds.get(key, ()), first_offset]):
                self._messages[number] += max(0, end - begin)
                begin = max(begin, end)

    def tell(self, counters: BrokerCounters) -> None:
        """Count and log the trim, which has begun on all nodes."""
        begin = self._first_position
        for part, messages in zip(self._parts, self._messages, strict=True):
            size = max(0, part.end - begin)
            counters.trimmed_messages[part.reason] += messages
            counters.trimmed_bytes[part.reason] += size
            _logger.log(
                logging.WARNING if part.reason == BY_DISK else logging.INFO,
                "event=trim position=%d reason=%s messages=%d bytes=%d",
                part.end,
                part.reason,
                messages,
                size,
            )
            begin = max(begin, part.end)
