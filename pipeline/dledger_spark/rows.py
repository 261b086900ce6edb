"""Rows from records: the choice of wanted rows, and their parts and fields as Arrow arrays."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from functools import cached_property, reduce
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from dledger_remoting.filters.sql92 import SqlFilter
from dledger_remoting.properties import TAGS

from .properties import BatchProperties
from .records import BODY, HEAD, PIECES, PROPERTIES, Heads, Records, every, to_arrow
from .uncommon import Hosts, Undecoded
from .wanted import RowFilter, TextCondition, TopicRange

QUEUE_ID: Final = 12
QUEUE_OFFSET: Final = 20
PHYSICAL_OFFSET: Final = 28
BORN_TIMESTAMP: Final = 40
BORN_HOST: Final = 48
STORE_TIMESTAMP: Final = 56
STORE_HOST: Final = 64
RECONSUME_TIMES: Final = 72
"""This constant and those above are positions of fields in a head, in bytes."""


class Rows:
    """Rows of records, in their order. Columns are made on demand."""

    def __init__(self, records: Records, numbers: pa.Array | None = None) -> None:
        """Hold all rows of `records`, or those with these `numbers`."""
        self._records = records
        self._numbers = numbers
        self.count = records.count if numbers is None else len(numbers)

    @cached_property
    def _heads(self) -> Heads:
        if self._numbers is None:
            return self._records.heads
        return Heads(self._take_part(HEAD).buffers()[2], self.count)

    @property
    def hosts(self) -> Hosts:
        """Born host and store host by physical offset, of records where one is IPv6."""
        return self._records.notes.hosts

    @cached_property
    def undecoded(self) -> dict[int, Undecoded]:
        """Bodies that cannot be decoded, by the number of their row."""
        undecoded_by_position = self._records.notes.undecoded
        if not undecoded_by_position:
            return {}
        positions = self.integers(PHYSICAL_OFFSET, "q").to_pylist()
        return {
            number: undecoded_by_position[position]
            for number, position in enumerate(positions)
            if position in undecoded_by_position
        }

    def without(self, numbers: Collection[int]) -> Rows | None:
        """Return all rows except these numbers; None if no row is left."""
        kept_numbers = pa.array([number for number in range(self.count) if number not in numbers], pa.int32())
        if not len(kept_numbers):
            return None
        return Rows(self._records, kept_numbers if self._numbers is None else pc.take(self._numbers, kept_numbers))

    def values(self) -> pa.Array:
        """Return the bodies, null where one cannot be decoded."""
        bodies = self._take_part(BODY)
        if not self.undecoded:
            return bodies
        is_decoded = pa.array([number not in self.undecoded for number in range(self.count)], pa.bool_())
        return pc.if_else(is_decoded, bodies, pa.scalar(None, pa.binary()))

    def undecoded_bodies(self) -> pa.Array:
        """Return the stored bytes of bodies that cannot be decoded, null for all other rows."""
        if not self.undecoded:
            return pa.nulls(self.count, pa.binary())
        bodies = [self.undecoded.get(number) for number in range(self.count)]
        return pa.array([None if body is None else body.raw for body in bodies], pa.binary())

    def properties(self) -> pa.Array:
        """Return the properties, as they are stored."""
        return self._take_part(PROPERTIES)

    def integers(self, place: int, code: Literal["i", "I", "q"]) -> pa.Array:
        """Return the field at byte `place` of every head: 32 bits, 32 bits without sign, or 64 bits."""
        return self._heads.integers(place, code)

    def topics(self) -> pa.Array:
        """Return the number of every row's topic."""
        return self._select(self._records.topics)

    def terms(self) -> pa.Array:
        """Return the term of every row's entry."""
        return self._expand_runs([(term, end) for term, _, end in self._records.entries])

    def log_indexes(self) -> pa.Array:
        """Return the index of every row's entry."""
        return self._expand_runs([(log_index, end) for _, log_index, end in self._records.entries])

    def _take_part(self, kind: int) -> pa.Array:
        if self._numbers is None:
            places = every(kind, self.count)
        else:
            places = pc.add(pc.multiply(self._numbers, pa.scalar(PIECES, pa.int32())), pa.scalar(kind, pa.int32()))
        return pc.take(self._records.pieces, places)

    def _expand_runs(self, runs: list[tuple[int, int]]) -> pa.Array:
        numbers = array("q")
        for number, end in runs:
            numbers.extend(array("q", (number,)) * (end - len(numbers)))
        return self._select(to_arrow(numbers))

    def _select(self, numbers: pa.Array) -> pa.Array:
        return numbers if self._numbers is None else pc.take(numbers, self._numbers)


class RowSelector:
    """Picks the wanted rows: rows within the ranges of their topics that pass the filter."""

    def __init__(self, topics: Sequence[TopicRange], row_filter: RowFilter) -> None:
        self._filter = row_filter
        self._sql = None if row_filter.sql is None else SqlFilter.parse(row_filter.sql)
        # One slot for each queue id up to a topic's largest wanted one, and one slot behind them for all larger ids. A
        # slot that is not wanted has an empty range. A topic that is not wanted at all has one such slot.
        firsts, ends, positions = array("q"), array("q"), array("q")
        begins, sizes = array("I"), array("I")
        for topic in (*topics, TopicRange("", {})):
            wanted = [topic.queues.get(queue_id, (0, 0)) for queue_id in range(max(topic.queues, default=-1) + 1)]
            begins.append(len(firsts))
            sizes.append(len(wanted))
            firsts.extend([*(first for first, _ in wanted), 0])
            ends.extend([*(end for _, end in wanted), 0])
            positions.extend([topic.first_position] * (len(wanted) + 1))
        self._firsts, self._ends, self._positions = (to_arrow(numbers) for numbers in (firsts, ends, positions))
        self._begins, self._sizes = to_arrow(begins), to_arrow(sizes)

    def select(self, records: Records) -> Rows | None:
        """Return the wanted rows, None without any."""
        rows = Rows(records)
        begins, sizes = pc.take(self._begins, records.topics), pc.take(self._sizes, records.topics)
        slots = pc.add(pc.min_element_wise(rows.integers(QUEUE_ID, "I"), sizes), begins)
        offsets = rows.integers(QUEUE_OFFSET, "q")
        conditions = [
            pc.greater_equal(offsets, pc.take(self._firsts, slots)),
            pc.less(offsets, pc.take(self._ends, slots)),
            pc.greater_equal(rows.integers(PHYSICAL_OFFSET, "q"), pc.take(self._positions, slots)),
            *self._filter_conditions(rows),
        ]
        is_wanted = reduce(pc.and_, conditions)
        row_numbers = pc.indices_nonzero(is_wanted).cast(pa.int32())
        if self._sql is not None and len(row_numbers):
            row_numbers = _filter_by_sql(records, row_numbers, self._sql)
        if not len(row_numbers):
            return None
        return rows if len(row_numbers) == rows.count else Rows(records, row_numbers)

    def _filter_conditions(self, rows: Rows) -> list[pa.Array]:
        row_filter = self._filter
        conditions: list[pa.Array] = []
        if row_filter.from_ms is not None:
            conditions.append(pc.greater_equal(rows.integers(STORE_TIMESTAMP, "q"), pa.scalar(row_filter.from_ms)))
        if row_filter.to_ms is not None:
            conditions.append(pc.less(rows.integers(STORE_TIMESTAMP, "q"), pa.scalar(row_filter.to_ms)))
        if row_filter.tags is not None:
            tags = BatchProperties(rows.properties()).get(TAGS)
            conditions.append(pc.is_in(tags, pa.array(sorted(row_filter.tags), pa.string())))
        if row_filter.texts:
            properties = BatchProperties(rows.properties())
            conditions += [_evaluate(condition, properties.get(condition.name)) for condition in row_filter.texts]
        return conditions


def _evaluate(condition: TextCondition, texts: pa.Array) -> pa.Array:
    """Return for each text whether a condition holds; null where there is no text, except for `is null`."""
    if condition.kind == "is null":
        return pc.is_valid(texts) if condition.negated else pc.is_null(texts)
    if condition.kind == "in":
        is_among = pc.is_in(texts, pa.array(condition.texts, pa.string()))
        holds = pc.if_else(pc.is_valid(texts), is_among, pa.scalar(None, pa.bool_()))
    else:
        search = {"starts with": pc.starts_with, "ends with": pc.ends_with, "contains": pc.match_substring}
        holds = search[condition.kind](texts, condition.texts[0])
    return pc.invert(holds) if condition.negated else holds


def _filter_by_sql(records: Records, numbers: pa.Array, sql_filter: SqlFilter) -> pa.Array:
    """Return those of the row numbers whose properties match."""
    properties = Rows(records, numbers).properties().to_pylist()
    matches = map(sql_filter.matches_text, properties)
    return pc.filter(numbers, pa.array(matches, pa.bool_()))
