"""Filters that are pushed down have the same meaning as in Spark."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import (
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

from dledger_spark.filters import PushedFilters
from dledger_spark.wanted import TextCondition

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def pushed(*filters: Filter) -> tuple[PushedFilters, list[Filter]]:
    taken = PushedFilters()
    return taken, list(taken.push(filters))


def test_filters_that_cannot_be_pushed_down_stay_with_spark() -> None:
    left = [
        IsNotNull(("offset",)),
        Not(EqualTo(("offset",), 3)),
        EqualTo(("key",), b"k"),
        EqualTo(("headers",), [{"key": "a", "value": b"b"}]),
        EqualTo(("properties", "a"), "b"),
        GreaterThan(("tags",), "a"),
        In(("keys",), ("a", None)),
        Not(GreaterThan(("tags",), "a")),
        StringStartsWith(("topic",), "a"),
        EqualTo(("timestamp",), datetime(2020, 1, 1)),  # noqa: DTZ001 (a time without zone is what is refused)
    ]
    assert pushed(*left)[1] == left


@pytest.mark.parametrize(
    ("one", "low", "high"),
    [
        (GreaterThan(("offset",), 5), 6, None),
        (GreaterThanOrEqual(("offset",), 5), 5, None),
        (LessThan(("offset",), 5), None, 5),
        (LessThanOrEqual(("offset",), 5), None, 6),
        (EqualTo(("offset",), 5), 5, 6),
    ],
)
def test_offsets_are_bounded(one: Filter, low: int | None, high: int | None) -> None:
    taken, left = pushed(one)
    assert not left
    assert (taken.offset.low, taken.offset.high) == (low, high)


def test_several_bounds_narrow_each_other() -> None:
    taken, left = pushed(
        GreaterThan(("offset",), 5),
        LessThan(("offset",), 20),
        GreaterThan(("offset",), 2),
        In(("topic",), ("a", "b")),
        EqualTo(("topic",), "b"),
        LessThan(("partition",), 3),
        In(("partition",), (1, 2, 3)),
    )
    assert not left
    assert (taken.offset.low, taken.offset.high) == (6, 20)
    assert [(topic, number) for topic in "abc" for number in range(5) if taken.wants(topic, number)] == [
        ("b", 1),
        ("b", 2),
    ]


OPERATORS = {
    EqualTo: lambda left, right: left == right,
    GreaterThan: lambda left, right: left > right,
    GreaterThanOrEqual: lambda left, right: left >= right,
    LessThan: lambda left, right: left < right,
    LessThanOrEqual: lambda left, right: left <= right,
}


@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize("microseconds", [2000, 2001, 2999, 3000])
def test_times_between_milliseconds_are_compared_exactly(kind: type[Filter], microseconds: int) -> None:
    limit = EPOCH + timedelta(microseconds=microseconds)
    taken, left = pushed(kind(("timestamp",), limit))  # type: ignore[call-arg]
    assert not left
    expected = [ms for ms in range(6) if OPERATORS[kind](EPOCH + timedelta(milliseconds=ms), limit)]
    assert [ms for ms in range(6) if ms in taken.timestamp] == expected


@pytest.mark.parametrize(
    ("one", "kind", "texts"),
    [
        (EqualTo(("keys",), "a"), "in", ("a",)),
        (In(("keys",), ("a", "b")), "in", ("a", "b")),
        (IsNull(("keys",)), "is null", ()),
        (StringStartsWith(("keys",), "a"), "starts with", ("a",)),
        (StringEndsWith(("keys",), "a"), "ends with", ("a",)),
        (StringContains(("keys",), "a"), "contains", ("a",)),
    ],
)
def test_conditions_on_keys_and_tags_are_taken(one: Filter, kind: str, texts: tuple[str, ...]) -> None:
    for negated, asked in ((False, one), (True, Not(one))):
        taken, left = pushed(asked)
        assert not left
        (condition,) = taken.texts
        assert condition == TextCondition("KEYS", kind, texts, negated)  # type: ignore[arg-type]
    assert pushed(IsNotNull(("tags",)))[0].texts == [TextCondition("TAGS", "is null", (), negated=True)]
    assert pushed(Not(EqualTo(("tags",), "a")))[0].texts == [TextCondition("TAGS", "in", ("a",), negated=True)]
