"""Topics and their queues, as the replicated state and its readers know them."""

from __future__ import annotations

from dledger_broker.kernel.digest import item_hash, mix
from dledger_broker.views.queueview import QueueView
from dledger_remoting.topics import TopicConfig

MASK_32 = 0xFFFFFFFF


class QueueState:
    """One queue of one incarnation of a topic.

    `next_offset` follows from applied records and never goes back. `staged_offset` is the leader's overlay: the next
    offset to hand out. It is at least `next_offset` while this replica leads, and is reset to it at every change of
    leadership. `first_offset` is the first kept offset that the group agreed on. This replica can read from
    `min_offset` on. A queue is `dropped` with its topic.
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

    def __init__(self, topic: str, queue_id: int, key_hash: int, created_position: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.next_offset = 0
        self.staged_offset = 0
        self.first_offset = 0
        self.view = QueueView(topic, queue_id, created_position, key_hash & MASK_32)
        self.key_hash = key_hash
        self.contribution = 0
        self.hash_due = False

    @property
    def dropped(self) -> bool:
        """True if its topic is gone."""
        return self.view.dropped

    @property
    def min_offset(self) -> int:
        """The first offset that can be read here."""
        return max(self.first_offset, self.view.start)

    @property
    def max_offset(self) -> int:
        """The offset that the next message will have. It equals `min_offset` if the queue is empty."""
        return self.next_offset

    def __repr__(self) -> str:
        return f"QueueState({self.topic}/{self.queue_id}, {self.first_offset}..{self.next_offset})"


class TopicState:
    """One incarnation of a topic. Records below `created_position` of the log belong to an earlier incarnation.

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
        """Number of queues that producers or consumers may use."""
        return max(self.config.read_queue_nums, self.config.write_queue_nums)

    def queue(self, queue_id: int) -> QueueState:
        """Return a queue. It is made empty if nothing was stored in it yet."""
        queue = self.queues.get(queue_id)
        if queue is None:
            key_hash = mix(self.key_hash, queue_id)
            queue = QueueState(self.config.topic_name, queue_id, key_hash, self.created_position)
            self.queues[queue_id] = queue
        return queue

    def drop(self) -> None:
        """Mark the topic and its queues as `dropped`."""
        self.dropped = True
        for queue in self.queues.values():
            queue.view.dropped = True
