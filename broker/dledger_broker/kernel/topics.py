"""Table of the topics and their queues, and the topics that changed recently."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from dledger.errors import CorruptionError
from dledger.statemachine import CommittedEntry
from dledger_base.invariants import invariant
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.digest import MASK, item_hash, mix
from dledger_broker.kernel.queues import QueueState, TopicState
from dledger_broker.kernel.tables import Changes, Frame, Table, in_slices
from dledger_remoting.topics import TopicConfig

MAX_REMEMBERED: Final = 4096


class TopicChanges:
    """Names of changed topics, each with the version that its change made. Changes up to `version` are unknown."""

    def __init__(self, version: int = 0) -> None:
        self._known_since = version
        self._changes: deque[tuple[int, str]] = deque()

    def note(self, version: int, name: str) -> None:
        """Note that a topic was made, changed or deleted. Versions rise."""
        self._changes.append((version, name))
        if len(self._changes) > MAX_REMEMBERED:
            self._known_since = self._changes.popleft()[0]

    def since(self, version: int) -> set[str] | None:
        """Return the topics that changed after a version, None if that was too many changes ago."""
        if version < self._known_since:
            return None
        names: set[str] = set()
        for changed, name in reversed(self._changes):
            if changed <= version:
                break
            names.add(name)
        return names


class PutTopic(msgspec.Struct, frozen=True):
    """Command that creates or replaces a topic; `store_timestamp_ms` is the leader's clock when it decided."""

    config: TopicConfig
    store_timestamp_ms: int


class DeleteTopic(msgspec.Struct, frozen=True):
    """Command that removes a topic. A topic created later under the same name starts its queues at offset 0."""

    topic: str


TOPIC_COMMANDS: Final[Kinds] = {16: PutTopic, 17: DeleteTopic}


class TopicRow(msgspec.Struct, frozen=True, array_like=True):
    """A topic in a snapshot."""

    config: TopicConfig
    created_position: int


class TopicFrame(msgspec.Struct, frozen=True, tag="topics"):
    """Topics of a snapshot."""

    rows: list[TopicRow]


class QueueFrame(msgspec.Struct, frozen=True, tag="queues"):
    """Queues as (topic, queue id, next offset, first kept offset). Their topics precede them in the stream."""

    rows: list[tuple[str, int, int, int]]


class TopicTable(Table):
    """All topics. `by_name` and `by_bytes` are for readers and stay the same objects.

    `version` counts changes of topics, for registrations. `changes` names the recent changes. Queues in which nothing
    was ever stored do not count in the digest.
    """

    __slots__ = ("_hash_due", "_restored_version", "_sum", "by_bytes", "by_name", "changes", "version")

    frames = (TopicFrame, QueueFrame)

    def __init__(self) -> None:
        self.by_name: dict[str, TopicState] = {}
        self.by_bytes: dict[bytes, TopicState] = {}
        self.version = 0
        self.changes = TopicChanges()
        self._restored_version = 0
        self._sum = 0
        self._hash_due: list[QueueState] = []

    @property
    def digest(self) -> int:
        """The order-independent 64-bit digest of topics and queues."""
        self._settle()
        return self._sum

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        match command:
            case PutTopic(config=config):
                changes.topic_put(self.put(config, entry.end))
            case DeleteTopic(topic=name):
                deleted = self.delete(name)
                if deleted is not None:
                    changes.topic_deleted(deleted)

    def put(self, config: TopicConfig, position: int) -> TopicState:
        """Create a topic at a log position, or replace its configuration. Its queues stay."""
        topic = self.by_name.get(config.topic_name)
        if topic is None:
            topic = TopicState(config, position)
            self.by_name[config.topic_name] = topic
            self.by_bytes[config.topic_name.encode()] = topic
        else:
            topic.config = config
        self._changed(config.topic_name)
        contribution = item_hash("topic", msgspec.to_builtins(config), topic.created_position)
        self._replace(topic.contribution, contribution)
        topic.contribution = contribution
        return topic

    def delete(self, name: str) -> TopicState | None:
        """Remove a topic and its queues. Return None if it does not exist."""
        topic = self.by_name.pop(name, None)
        if topic is None:
            return None
        del self.by_bytes[name.encode()]
        self._settle()
        topic.drop()
        for queue in topic.queues.values():
            queue.next_offset = -1  # -1, so that a record staged for the queue cannot be mistaken for its next record
            self._replace(queue.contribution, 0)
        self._replace(topic.contribution, 0)
        self._changed(name)
        return topic

    def trim_queue(self, name: str, created_position: int, queue_id: int, first_offset: int) -> bool:
        """Raise a queue's first kept offset. Another incarnation of the topic, or a lower offset, changes nothing.

        Return whether the offset was raised.
        """
        topic = self.by_name.get(name)
        queue = topic.queues.get(queue_id) if topic and topic.created_position == created_position else None
        if queue is None or first_offset <= queue.first_offset:
            return False
        invariant(first_offset <= queue.next_offset, "only stored messages are trimmed", queue=queue)
        queue.first_offset = first_offset
        self.queues_changed((queue,))
        return True

    def queues_changed(self, queues: Iterable[QueueState]) -> None:
        """Note that the offsets of queues moved. Their share of the digest is computed when the digest is read."""
        for queue in queues:
            if not queue.hash_due:
                queue.hash_due = True
                self._hash_due.append(queue)

    def queues(self) -> Iterable[QueueState]:
        """Yield every queue that exists in memory."""
        for topic in self.by_name.values():
            yield from topic.queues.values()

    def reset_staged(self) -> None:
        """Discard the overlay, so that the next offsets handed out follow from applied records."""
        for queue in self.queues():
            queue.staged_offset = queue.next_offset

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        _ = now
        topics = [TopicRow(topic.config, topic.created_position) for topic in self.by_name.values()]
        queues = [
            (queue.topic, queue.queue_id, queue.next_offset, queue.first_offset)
            for queue in self.queues()
            if queue.next_offset
        ]
        return {"topics": map(TopicFrame, in_slices(topics)), "queues": map(QueueFrame, in_slices(queues))}

    def restore_frame(self, frame: Frame, now: float) -> None:
        _ = now
        match frame:
            case TopicFrame(rows=topics):
                for topic in topics:
                    self.put(topic.config, topic.created_position)
            case QueueFrame(rows=queues):
                for row in queues:
                    self._restore_queue(*row)

    def _restore_queue(self, name: str, queue_id: int, next_offset: int, first_offset: int) -> None:
        topic = self.by_name.get(name)
        if topic is None:
            raise CorruptionError(f"snapshot of the broker's state has queue {name}/{queue_id} but no topic {name}")
        queue = topic.queue(queue_id)
        queue.next_offset = queue.staged_offset = next_offset
        queue.first_offset = first_offset
        self.queues_changed((queue,))

    def restore_version(self, version: int) -> None:
        """Set the version that the table is to have when everything is restored."""
        self._restored_version = version

    def finish_restore(self) -> None:
        """Set the restored version, because restoring rows was no change of topics."""
        self.version = self._restored_version
        self.changes = TopicChanges(self.version)

    def _changed(self, name: str) -> None:
        self.version += 1
        self.changes.note(self.version, name)

    def _settle(self) -> None:
        for queue in self._hash_due:
            queue.hash_due = False
            if queue.dropped:
                continue
            contribution = 0
            if queue.next_offset:
                contribution = mix(mix(queue.key_hash, queue.next_offset), queue.first_offset)
            self._replace(queue.contribution, contribution)
            queue.contribution = contribution
        self._hash_due.clear()

    def _replace(self, before: int, after: int) -> None:
        self._sum = (self._sum - before + after) & MASK
