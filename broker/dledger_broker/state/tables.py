"""The replicated state, changed by applied commands and records only."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dledger.invariants import invariant
from dledger_broker.state.digest import MASK, item_hash, mix
from dledger_broker.state.offsets import OffsetTable
from dledger_broker.state.pins import PinTable
from dledger_broker.state.recent_commits import RecentCommits
from dledger_broker.state.remembered import RememberedSends
from dledger_broker.state.topic_changes import TopicChanges
from dledger_broker.views.queueview import QueueView
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig


class QueueState:
    """One queue of one incarnation of a topic.

    `next_offset` follows from applied records and never goes back.  `staged_offset` is the leader's overlay: the next
    offset to hand out, at least `next_offset` while this replica leads, reset to it at every change of leadership.
    `first_offset` is the first kept offset that the group agreed on; what this replica can read starts at `min_offset`.
    A queue is `dropped` with its topic.
    """

    __slots__ = (
        "contribution",
        "first_offset",
        "hash_due",
        "key_hash",
        "next_offset",
        "queue_id",
        "staged_offset",
        "topic",
        "view",
    )

    def __init__(self, topic: str, queue_id: int, key_hash: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.next_offset = 0
        self.staged_offset = 0
        self.first_offset = 0
        self.view = QueueView(topic, queue_id)
        self.key_hash = key_hash
        self.contribution = 0
        self.hash_due = False

    @property
    def dropped(self) -> bool:
        """Its topic is gone."""
        return self.view.dropped

    @property
    def min_offset(self) -> int:
        """The first offset that can be read here."""
        return max(self.first_offset, self.view.start)

    @property
    def max_offset(self) -> int:
        """The offset that the next message will have; equals `min_offset` of an empty queue."""
        return self.next_offset

    def __repr__(self) -> str:
        return f"QueueState({self.topic}/{self.queue_id}, {self.first_offset}..{self.next_offset})"


class TopicState:
    """One incarnation of a topic.  Records below `created_position` of the log belong to an earlier one.

    A topic is `dropped` with its queues when it is deleted, or when a snapshot replaces the whole state.
    """

    __slots__ = ("config", "contribution", "created_position", "dropped", "key_hash", "queues")

    def __init__(self, config: TopicConfig, created_position: int) -> None:
        self.config = config
        self.created_position = created_position
        self.dropped = False
        self.queues: dict[int, QueueState] = {}
        self.key_hash = item_hash("queues", config.topic_name, created_position)
        self.contribution = 0

    @property
    def queue_count(self) -> int:
        """Queues that producers or consumers may use."""
        return max(self.config.read_queue_nums, self.config.write_queue_nums)

    def queue(self, queue_id: int) -> QueueState:
        """The queue, made empty if nothing was stored in it yet."""
        queue = self.queues.get(queue_id)
        if queue is None:
            queue = QueueState(self.config.topic_name, queue_id, mix(self.key_hash, queue_id))
            self.queues[queue_id] = queue
        return queue

    def drop(self) -> None:
        """Mark it and its queues as `dropped`."""
        self.dropped = True
        for queue in self.queues.values():
            queue.view.dropped = True


class BrokerState:
    """Topics, groups, offsets, pins, remembered sends, the group's ordinal and what members understand.

    Two replicas that applied the same entries have equal states and equal digests; queues in which nothing was ever
    stored count for nothing.  `topic_version` counts changes of topics, for registrations.  Below `trimmed_before` the
    log is trimmed, or about to be, on every replica, whatever this one still keeps; the digest leaves it out, and
    `recent_commits` too.
    """

    def __init__(self) -> None:
        self.topics: dict[str, TopicState] = {}
        self.topics_by_bytes: dict[bytes, TopicState] = {}
        self.groups: dict[str, SubscriptionGroupConfig] = {}
        self.offsets = OffsetTable()
        self.recent_commits = RecentCommits()
        self.features: dict[str, tuple[int, ...]] = {}
        self.pins = PinTable()
        self.remembered = RememberedSends()
        self.ordinal: int | None = None
        self.topic_version = 0
        self.topic_changes = TopicChanges()
        self.trimmed_before = 0
        self._sum = 0
        self._hash_due: list[QueueState] = []

    def put_topic(self, config: TopicConfig, position: int) -> TopicState:
        """Create a topic at a log position, or replace its configuration; queues stay."""
        topic = self.topics.get(config.topic_name)
        if topic is None:
            topic = TopicState(config, position)
            self.topics[config.topic_name] = topic
            self.topics_by_bytes[config.topic_name.encode()] = topic
        else:
            topic.config = config
        self._topic_changed(config.topic_name)
        contribution = item_hash("topic", msgspec.to_builtins(config), topic.created_position)
        self._replace(topic.contribution, contribution)
        topic.contribution = contribution
        return topic

    def delete_topic(self, name: str) -> TopicState | None:
        """Remove a topic, its queues and the offsets committed on it; None if there is none."""
        topic = self.topics.pop(name, None)
        if topic is None:
            return None
        del self.topics_by_bytes[name.encode()]
        self._settle()
        topic.drop()
        for queue in topic.queues.values():
            queue.next_offset = -1  # a record staged for it cannot be mistaken for the queue's next
            self._replace(queue.contribution, 0)
        self._replace(topic.contribution, 0)
        self.offsets.remove_topic(name)
        self._topic_changed(name)
        return topic

    def _topic_changed(self, name: str) -> None:
        self.topic_version += 1
        self.topic_changes.note(self.topic_version, name)

    def put_group(self, config: SubscriptionGroupConfig) -> None:
        """Create or replace a consumer group."""
        self._replace(self._group_hash(config.group_name), item_hash("group", msgspec.to_builtins(config)))
        self.groups[config.group_name] = config

    def delete_group(self, name: str, *, clean_offsets: bool) -> None:
        """Remove a consumer group; none is no error."""
        self._replace(self._group_hash(name), 0)
        self.groups.pop(name, None)
        if clean_offsets:
            self.offsets.remove_group(name)

    def put_features(self, node_id: str, kinds: tuple[int, ...]) -> None:
        """Remember which command kinds a member understands."""
        self._replace(self._features_hash(node_id), item_hash("features", node_id, kinds))
        self.features[node_id] = kinds

    def understood_by_all(self, kind: int, members: Iterable[str]) -> bool:
        """True if every member advertises the command kind."""
        return all(kind in self.features.get(member, ()) for member in members)

    def set_ordinal(self, ordinal: int) -> None:
        """Number the group, once: what is set stays."""
        if self.ordinal is None:
            self.ordinal = ordinal
            self._replace(0, item_hash("ordinal", ordinal))

    def trim_queue(self, name: str, created_position: int, queue_id: int, first_offset: int) -> None:
        """Raise a queue's first kept offset; another incarnation of the topic, or a lower offset, changes nothing."""
        topic = self.topics.get(name)
        queue = topic.queues.get(queue_id) if topic and topic.created_position == created_position else None
        if queue is not None and first_offset > queue.first_offset:
            invariant(first_offset <= queue.next_offset, "only stored messages are trimmed", queue=queue)
            queue.first_offset = first_offset
            self.queues_changed((queue,))

    def queues_changed(self, queues: Iterable[QueueState]) -> None:
        """The offsets of queues moved; their share of the digest is computed when the digest is asked for."""
        for queue in queues:
            if not queue.hash_due:
                queue.hash_due = True
                self._hash_due.append(queue)

    def queues(self) -> Iterable[QueueState]:
        """Every queue that exists in memory."""
        for topic in self.topics.values():
            yield from topic.queues.values()

    def reset_staged(self) -> None:
        """Discard the overlay: what is handed out next is what applied records say."""
        for queue in self.queues():
            queue.staged_offset = queue.next_offset

    def digest(self) -> int:
        """The order-independent 64-bit digest of the state."""
        self._settle()
        return (self._sum + self.offsets.digest + self.pins.digest + self.remembered.digest) & MASK

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

    def _group_hash(self, name: str) -> int:
        config = self.groups.get(name)
        return 0 if config is None else item_hash("group", msgspec.to_builtins(config))

    def _features_hash(self, node_id: str) -> int:
        kinds = self.features.get(node_id)
        return 0 if kinds is None else item_hash("features", node_id, kinds)
