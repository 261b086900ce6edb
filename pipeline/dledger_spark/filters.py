"""Filters that Spark pushes down: on topic, partition, offset, timestamp, tags and keys, they narrow what is read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from dledger_remoting.properties import KEYS, TAGS

from .wanted import TextCondition, TextKind

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SETS: Final = {"topic": str, "partition": int, "tags": str}
_TEXTS: Final = {"tags": TAGS, "keys": KEYS}
_RANGES: Final = {"partition": int, "offset": int}


@dataclass(slots=True)
class Interval:
    """Integers from `low` to below `high`; None is no limit."""

    low: int | None = None
    high: int | None = None

    def narrow(self, low: int | None = None, high: int | None = None) -> None:
        """Keep only what also lies in `[low, high)`."""
        if low is not None:
            self.low = low if self.low is None else max(self.low, low)
        if high is not None:
            self.high = high if self.high is None else min(self.high, high)

    def __contains__(self, number: int) -> bool:
        return (self.low is None or number >= self.low) and (self.high is None or number < self.high)


@dataclass(slots=True)
class PushedFilters:
    """What was pushed down, exactly applied: rows outside are not produced. `timestamp` is in ms."""

    topic: frozenset[str] | None = None
    partition: frozenset[int] | None = None
    tags: frozenset[str] | None = None
    partition_range: Interval = field(default_factory=Interval)
    offset: Interval = field(default_factory=Interval)
    timestamp: Interval = field(default_factory=Interval)
    texts: list[TextCondition] = field(default_factory=list)

    def push(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Take what can be taken; yields what Spark must still evaluate."""
        for one in filters:
            if not self._take(one) and not self._take_text(one):
                yield one

    def wants(self, topic: str, partition: int) -> bool:
        """Whether any row of a queue can be wanted."""
        return (
            (self.topic is None or topic in self.topic)
            and (self.partition is None or partition in self.partition)
            and partition in self.partition_range
        )

    def _take(self, one: Filter) -> bool:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        if len(attribute) != 1:
            return False
        name = attribute[0]
        if isinstance(one, In):
            return self._take_set(name, one.value)
        if isinstance(one, EqualTo | EqualNullSafe):
            return self._take_set(name, (one.value,)) or self._take_range(name, one.value, "=")
        if isinstance(one, GreaterThanOrEqual):
            return self._take_range(name, one.value, ">=")
        if isinstance(one, GreaterThan):
            return self._take_range(name, one.value, ">")
        if isinstance(one, LessThan):
            return self._take_range(name, one.value, "<")
        return isinstance(one, LessThanOrEqual) and self._take_range(name, one.value, "<=")

    def _take_text(self, one: Filter) -> bool:
        negated = isinstance(one, Not)
        condition = _text_condition(one.child if isinstance(one, Not) else one, negated=negated)
        if condition is None:
            return False
        self.texts.append(condition)
        return True

    def _take_set(self, name: str, values: Collection[object]) -> bool:
        kind = _SETS.get(name)
        if kind is None or not all(type(value) is kind for value in values):
            return False
        chosen = frozenset(values)
        present = getattr(self, name)
        setattr(self, name, chosen if present is None else present & chosen)
        return True

    def _take_range(self, name: str, value: object, operator: str) -> bool:
        if name == "timestamp":
            if not isinstance(value, datetime) or value.tzinfo is None:
                return False
            microseconds = (value - _EPOCH) // timedelta(microseconds=1)
            # Stored times are whole milliseconds: t >= v holds from v rounded up, t > v from v rounded down plus one.
            at_least, above = -(-microseconds // 1000), microseconds // 1000 + 1
            interval = self.timestamp
        elif name in _RANGES and type(value) is int:
            at_least, above = value, value + 1
            interval = self.offset if name == "offset" else self.partition_range
        else:
            return False
        if operator in (">=", "="):
            interval.narrow(low=at_least)
        if operator == ">":
            interval.narrow(low=above)
        if operator in ("<=", "="):
            interval.narrow(high=above)
        if operator == "<":
            interval.narrow(high=at_least)
        return True


def _text_condition(one: Filter, *, negated: bool) -> TextCondition | None:
    """The condition that a filter is on a column which is a property of its own; None if it is something else."""
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    name = _TEXTS.get(attribute[0]) if len(attribute) == 1 else None
    if name is None:
        return None
    if isinstance(one, IsNull | IsNotNull):
        return TextCondition(name, "is null", negated=negated is isinstance(one, IsNull))
    kind: TextKind
    values: tuple[object, ...]
    match one:
        case EqualTo(_, value):
            kind, values = "in", (value,)
        case In(_, values):
            kind = "in"
        case StringStartsWith(_, value):
            kind, values = "starts with", (value,)
        case StringEndsWith(_, value):
            kind, values = "ends with", (value,)
        case StringContains(_, value):
            kind, values = "contains", (value,)
        case _:
            return None
    texts = tuple(value for value in values if isinstance(value, str))
    return TextCondition(name, kind, texts, negated) if len(texts) == len(values) else None
