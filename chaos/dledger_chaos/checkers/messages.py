"""The messages that clients sent in a run, and the content of the queues at its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

from dledger_chaos.history import Operation, Outcome
from dledger_chaos.workloads.records import Pulled, Seen, Stored, StoredBatch, extras, seen
from dledger_remoting.codes import ResponseCode

SINGLE_SENDS: Final = frozenset({"send", "send-repeating", "send-idempotent", "send-ordered", "send-oneway"})
LATER_SENDS: Final = frozenset({"send-delayed", "send-half", "send-back", "request"})
"""Sends whose acknowledgement does not name the place of the message."""
AT_MOST_ONCE: Final = frozenset({"send", "send-batch", "send-oneway", "send-delayed", "send-half", "request"})
"""Sends whose client makes no further attempt after one of unknown outcome."""
_MOST_LIKELY_FIRST: Final[tuple[Outcome, ...]] = ("ok", "info", "fail")

Place: TypeAlias = tuple[str, int]
"""A queue's key and a queue offset."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One message that a client tried to send; `place` and `position` are from the acknowledgement."""

    value: str
    operation: Operation
    place: Place | None = None
    position: int = -1

    @property
    def outcome(self) -> Outcome:
        """Outcome of its send."""
        return self.operation.outcome

    def __str__(self) -> str:
        where = "" if self.place is None else f" at {self.place[0]}@{self.place[1]}"
        return f"{self.value} (operation {self.operation.id}, {self.outcome}{where})"


@dataclass(slots=True)
class Queue:
    """One queue at the end of a run. `bounds` are its first and end offset, None if they could not be read."""

    key: str
    bounds: tuple[int, int] | None = None
    readers: frozenset[str] = frozenset()
    """The nodes from which it must be read."""
    nodes: dict[str, dict[int, Seen]] = field(default_factory=dict)

    @property
    def contents(self) -> Mapping[int, Seen]:
        """The longest content that a node showed. Another check compares nodes."""
        return max(self.nodes.values(), key=len, default={})

    def read_through(self, node: str) -> bool:
        """Return True if a node showed its queue to the end. Otherwise a missing offset proves nothing."""
        if self.bounds is None:
            return False
        first, end = self.bounds
        return first >= end or max(self.nodes[node], default=-1) >= end - 1

    def unread(self) -> str:
        """Return the reason why the queue was not read as a whole, empty if it was."""
        if self.bounds is None:
            return f"the offsets of {self.key} could not be read"
        if self.bounds[0] < self.bounds[1]:
            if not self.nodes:
                return f"{self.key} was not read"
            if missing := sorted(self.readers - self.nodes.keys()):
                return f"{self.key} was not read on {', '.join(missing)}"
        unread = [node for node in self.nodes if not self.read_through(node)]
        return f"{self.key} was not read to its end {self.bounds[1]} on {', '.join(unread)}" if unread else ""


class Messages:
    """The messages of a run, gathered once for all checks.

    `trims` is True if the log is trimmed all the time, even while queues are read at the end. `readers` are the nodes
    of each broker group that must show all messages.
    """

    def __init__(
        self,
        operations: Iterable[Operation],
        *,
        trims: bool = False,
        readers: Mapping[str, frozenset[str]] = MappingProxyType({}),
    ) -> None:
        self._trims = trims
        self._readers = readers
        self.sent: dict[str, Sent] = {}
        self.queues: dict[str, Queue] = {}
        for operation in operations:
            if operation.f in SINGLE_SENDS:
                self._add_single(operation)
            elif operation.f in LATER_SENDS:
                self._add_later(operation)
            elif operation.f == "send-batch":
                self._add_batch(operation)
            elif operation.f == "bounds":
                self._add_bounds(operation)
            elif operation.f == "scan":
                self._add_scan(operation)

    def acknowledged(self) -> Iterator[Sent]:
        """Return the messages whose clients got an acknowledgement with a place."""
        return (sent for sent in self.sent.values() if sent.place is not None)

    @cached_property
    def places(self) -> Mapping[str, list[Place]]:
        """Places of each value at the end."""
        places: dict[str, list[Place]] = {}
        for queue in self.queues.values():
            for message in queue.contents.values():
                places.setdefault(message.value, []).append((queue.key, message.offset))
        return places

    def read_topics(self) -> set[str]:
        """Return the topics whose queues were read at the end."""
        return {key.partition("/")[0] for key in self.queues}

    def unread(self, keys: Iterable[str]) -> list[str]:
        """Return the reasons why these queues, or other queues of their topics, were not read as a whole.

        A topic in place of a key stands for all queues of the topic.
        """
        wanted = set(keys)
        reasons = []
        for topic in sorted({key.partition("/")[0] for key in wanted}):
            queues = [queue for key, queue in self.queues.items() if key.startswith(f"{topic}/")]
            reasons += [reason for queue in queues if (reason := queue.unread())]
            if not queues:
                reasons.append(f"topic {topic} was not read at the end")
                continue
            unlisted = sorted(key for key in wanted - self.queues.keys() if key.startswith(f"{topic}/"))
            reasons += [f"{key} was not among the topic's queues at the end" for key in unlisted]
        return reasons

    def _add_single(self, operation: Operation) -> None:
        value = str(operation.value)
        if operation.outcome == "ok":
            stored = extras(operation, Stored)
            self.sent[value] = Sent(value, operation, (stored.queue, stored.offset), stored.position)
        else:
            self.sent[value] = Sent(value, operation)

    def _add_later(self, operation: Operation) -> None:
        """Keep the request that most likely stored the message, if there were several requests."""
        sent = Sent(str(operation.value), operation)
        known = self.sent.setdefault(sent.value, sent)
        if _MOST_LIKELY_FIRST.index(sent.outcome) < _MOST_LIKELY_FIRST.index(known.outcome):
            self.sent[sent.value] = sent

    def _add_batch(self, operation: Operation) -> None:
        values = msgspec.convert(operation.value, list[str])
        if operation.outcome != "ok":
            self.sent.update((value, Sent(value, operation)) for value in values)
            return
        stored = extras(operation, StoredBatch)
        for value, offset, position in zip(values, stored.offsets, stored.positions, strict=True):
            self.sent[value] = Sent(value, operation, (stored.queue, offset), position)

    def _add_bounds(self, operation: Operation) -> None:
        queue = self._get_queue(operation.key)
        if operation.outcome == "ok":
            first, end = msgspec.convert(operation.value, tuple[int, int])
            queue.bounds = first, end

    def _add_scan(self, operation: Operation) -> None:
        node = operation.extras.get("node")
        if node is None:
            return  # the topic's queues could not even be listed
        queue = self._get_queue(operation.key)
        found = queue.nodes.setdefault(str(node), {})
        if operation.outcome != "ok":
            return
        found.update((one.offset, one) for one in seen(operation))
        pulled = extras(operation, Pulled)
        if self._trims and pulled.code == ResponseCode.PULL_OFFSET_MOVED and queue.bounds is not None:
            queue.bounds = max(queue.bounds[0], pulled.next_offset), queue.bounds[1]

    def _get_queue(self, key: str) -> Queue:
        if key not in self.queues:
            _, _, rest = key.partition("/")
            self.queues[key] = Queue(key, readers=self._readers.get(rest.partition("/")[0], frozenset()))
        return self.queues[key]
