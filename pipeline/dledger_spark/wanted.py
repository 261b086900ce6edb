"""Selection of the records that a read wants: plain values, made by the planner and pickled to the tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

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
