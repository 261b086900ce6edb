"""Selection of the records that a read wants: plain values, made by the planner and pickled to the tasks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

TextKind: TypeAlias = Literal["in", "is null", "starts with", "ends with", "contains"]


@dataclass(slots=True)
class TopicRange:
    """The wanted records of a topic.

    They lie at or behind byte `first_position` of the log, where the topic's present incarnation starts. Their queue
    offset lies in `[first, end)` of their queue. Queues that are not named are not wanted.
    """

    name: str
    queues: dict[int, tuple[int, int]]
    first_position: int = 0


@dataclass(frozen=True, slots=True)
class TextCondition:
    """A condition on one property of a record, as in SQL: a record without the property satisfies only `is null`.

    `in` has any number of `texts`, `is null` none, other conditions one.
    """

    name: str
    kind: TextKind
    texts: tuple[str, ...] = ()
    negated: bool = False


@dataclass(slots=True)
class RowFilter:
    """Further conditions of a record; None is no limit.

    Its store time in ms lies in `[from_ms, to_ms)`, its tag is one of `tags`, each of `texts` and the expression `sql`
    hold for its properties.
    """

    from_ms: int | None = None
    to_ms: int | None = None
    tags: frozenset[str] | None = None
    texts: tuple[TextCondition, ...] = ()
    sql: str | None = None


_BROKER_WRITTEN: Final = r"rmq_sys_.*|RMQ_SYS_TRANS_.*|SCHEDULE_TOPIC_XXXX|TRANS_CHECK_MAX_TIME_TOPIC"
_match_broker_written: Final = re.compile(_BROKER_WRITTEN, re.DOTALL).fullmatch
_match_left_out: Final = re.compile(
    rf"{_BROKER_WRITTEN}|RMQ_SYS_.*|TBW102|SELF_TEST_TOPIC|BenchmarkTest|OFFSET_MOVED_EVENT|CHECKPOINT_TOPIC"
    r"|%(RETRY|DLQ)%.*",
    re.DOTALL,
).fullmatch


def is_broker_written(topic: str) -> bool:
    """Return True for a topic that only brokers read and write, such as that of delayed or uncommitted messages."""
    return _match_broker_written(topic) is not None


def is_left_out(topic: str) -> bool:
    """Return True for a topic that no pattern selects: topics of the service, retry topics and dead-letter topics."""
    return _match_left_out(topic) is not None
