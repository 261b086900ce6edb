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
        """Keep only the integers that also lie in `[low, high)`."""
        if low is not None:
            self.low = low if self.low is None else max(self.low, low)
        if high is not None:
            self.high = high if self.high is None else min(self.high, high)

    def __contains__(self, number: int) -> bool:
        return (self.low is None or number >= self.low) and (self.high is None or number < self.high)


@dataclass(slots=True)
class PushedFilters:
    """Filters that were pushed down. They are applied exactly: no row outside is produced. `timestamp` is in ms."""

    topic: frozenset[str] | None = None
    partition: frozenset[int] | None = None
    tags: frozenset[str] | None = None
    partition_range: Interval = field(default_factory=Interval)
    offset: Interval = field(default_factory=Interval)
    timestamp: Interval = field(default_factory=Interval)
    texts: list[TextCondition] = field(default_factory=list)

    def push(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Take what can be taken; yields what Spark must still evaluate."""
        for condition in filters:
            if not self._push_comparison(condition) and not self._push_text(condition):
                yield condition

    def wants(self, topic: str, partition: int) -> bool:
        """Return True if any row of a queue can be wanted."""
        return (
            (self.topic is None or topic in self.topic)
            and (self.partition is None or partition in self.partition)
            and partition in self.partition_range
        )

    def _push_comparison(self, condition: Filter) -> bool:
        attribute: tuple[str, ...] = getattr(condition, "attribute", ())
        if len(attribute) != 1:
            return False
        name = attribute[0]
        if isinstance(condition, In):
            return self._push_set(name, condition.value)
        if isinstance(condition, EqualTo | EqualNullSafe):
            return self._push_set(name, (condition.value,)) or self._push_range(name, condition.value, "=")
        if isinstance(condition, GreaterThanOrEqual):
            return self._push_range(name, condition.value, ">=")
        if isinstance(condition, GreaterThan):
            return self._push_range(name, condition.value, ">")
        if isinstance(condition, LessThan):
            return self._push_range(name, condition.value, "<")
        return isinstance(condition, LessThanOrEqual) and self._push_range(name, condition.value, "<=")

    def _push_text(self, condition: Filter) -> bool:
        negated = isinstance(condition, Not)
        text_condition = _text_condition(condition.child if isinstance(condition, Not) else condition, negated=negated)
        if text_condition is None:
            return False
        self.texts.append(text_condition)
        return True

    def _push_set(self, name: str, values: Collection[object]) -> bool:
        kind = _SETS.get(name)
        if kind is None or not all(type(value) is kind for value in values):
            return False
        pushed = frozenset(values)
        present = getattr(self, name)
        setattr(self, name, pushed if present is None else present & pushed)
        return True

    def _push_range(self, name: str, value: object, operator: str) -> bool:
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


def _text_condition(condition: Filter, *, negated: bool) -> TextCondition | None:
    """Return the condition of a filter on a column with a property of its own; None for other filters."""
    attribute: tuple[str, ...] = getattr(condition, "attribute", ())
    name = _TEXTS.get(attribute[0]) if len(attribute) == 1 else None
    if name is None:
        return None
    if isinstance(condition, IsNull | IsNotNull):
        return TextCondition(name, "is null", negated=negated is isinstance(condition, IsNull))
    kind: TextKind
    values: tuple[object, ...]
    match condition:
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
