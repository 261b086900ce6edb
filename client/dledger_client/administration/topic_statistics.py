"""Statistics of topics as `Admin` shows them: what each queue keeps, how many messages come, which groups consume."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import RemotingError
from dledger_remoting.statistics import GroupList, decode_topic_stats

from ..errors import refusal
from ..messages import MessageQueue
from .cluster_calls import decode


class QueueRange(msgspec.Struct, frozen=True):
    """Kept messages of a queue: offsets `first` to `end` - 1.

    `newest_ms` is the time in ms since 1970 at which the newest was stored, None without any.
    """

    queue: MessageQueue
    first: int
    end: int
    newest_ms: int | None


class TopicStatistics(msgspec.Struct, frozen=True):
    """A topic: its queues in order, and the messages that all leaders together store per second."""

    queues: list[QueueRange]
    stored_per_s: float


def statistics_of(answers: Mapping[str, RemotingCommand]) -> TopicStatistics:
    """Return what the leaders of the broker groups say in their answers to 202. Raises `RefusedError`."""
    queues: list[QueueRange] = []
    stored_per_s = 0.0
    for name, answer in answers.items():
        try:
            table, rate = decode_topic_stats(bytes(answer.body))
        except RemotingError as error:
            raise refusal(error) from error
        stored_per_s += rate
        queues += (
            QueueRange(
                MessageQueue(queue.topic, name, queue.queue_id),
                row.min_offset,
                row.max_offset,
                row.last_update_timestamp or None,
            )
            for queue, row in table.items()
        )
    return TopicStatistics(sorted(queues, key=lambda one: one.queue), stored_per_s)


def consumers_in(answers: Mapping[str, RemotingCommand]) -> list[str]:
    """Return the groups that the leaders name in their answers to 300. Raises `RefusedError`."""
    return sorted({group for answer in answers.values() for group in decode(GroupList, answer.body).group_list})
