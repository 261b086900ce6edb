"""From records to rows: those that are wanted, and their pieces and fields as Arrow arrays."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cached_property, reduce
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from dledger_remoting.filters.sql92 import SqlFilter
from dledger_remoting.properties import TAGS

from .properties import BatchProperties
from .records import BODY, HEAD, PIECES, PROPERTIES, Heads, Records, every, to_arrow
from .uncommon import Hosts
from .wanted import RowFilter, TextCondition, TopicRange

QUEUE_ID: Final = 12
QUEUE_OFFSET: Final = 20
PHYSICAL_OFFSET: Final = 28
BORN_TIMESTAMP: Final = 40
BORN_HOST: Final = 48
STORE_TIMESTAMP: Final = 56
STORE_HOST: Final = 64
RECONSUME_TIMES: Final = 72
"""Where fields stand in a head."""


class Rows:
    """Rows of records, in their order; everything is made when it is asked for."""

    def __init__(self, records: Records, numbers: pa.Array | None = None) -> None:
        """All rows of `records`, or those with these `numbers`."""
        self._records = records
        self._numbers = numbers
        self.count = records.count if numbers is None else len(numbers)

    @cached_property
    def _heads(self) -> Heads:
        if self._numbers is None:
            return self._records.heads
        return Heads(self._piece(HEAD).buffers()[2], self.count)

    @property
    def hosts(self) -> Hosts:
        """Born host and store host by physical offset, of records where one is IPv6."""
        return self._records.notes.hosts

    def check_bodies(self) -> None:
        """Raises `CorruptDataError` for the first row whose body cannot be read."""
        unreadable = self._records.notes.unreadable
        if unreadable:
            for position in self.integers(PHYSICAL_OFFSET, "q").to_pylist():
                if position in unreadable:
                    raise unreadable[position]

    def values(self) -> pa.Array:
        """The bodies."""
        return self._piece(BODY)

    def properties(self) -> pa.Array:
        """The properties, as they are stored."""
        return self._piece(PROPERTIES)

    def integers(self, place: int, code: Literal["i", "I", "q"]) -> pa.Array:
        """The field at byte `place` of every head: 32 bits, 32 bits without sign, or 64 bits."""
        return self._heads.integers(place, code)

    def topics(self) -> pa.Array:
        """The number of every row's topic."""
        return self._wanted(self._records.topics)

    def terms(self) -> pa.Array:
        """The term of every row's entry."""
        return self._of_runs([(term, end) for term, _, end in self._records.entries])

    def log_indexes(self) -> pa.Array:
        """The index of every row's entry."""
        return self._of_runs([(log_index, end) for _, log_index, end in self._records.entries])

    def _piece(self, kind: int) -> pa.Array:
        if self._numbers is None:
            places = every(kind, self.count)
        else:
            places = pc.add(pc.multiply(self._numbers, pa.scalar(PIECES, pa.int32())), pa.scalar(kind, pa.int32()))
        return pc.take(self._records.pieces, places)

    def _of_runs(self, runs: list[tuple[int, int]]) -> pa.Array:
        numbers = array("q")
        for number, end in runs:
            numbers.extend(array("q", (number,)) * (end - len(numbers)))
        return self._wanted(to_arrow(numbers))

    def _wanted(self, numbers: pa.Array) -> pa.Array:
        return numbers if self._numbers is None else pc.take(numbers, self._numbers)


class RowSelector:
    """Picks the wanted rows: those within the ranges of their topics that pass the filter."""

    def __init__(self, topics: Sequence[TopicRange], row_filter: RowFilter) -> None:
        self._filter = row_filter
        self._sql = None if row_filter.sql is None else SqlFilter.parse(row_filter.sql)
        # One slot for each queue id up to a topic's largest wanted one, and one behind them for all larger ids. What a
        # slot does not want has an empty range; topics that are not wanted at all have one such slot.
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
        """The wanted rows, None if there are none. Raises `CorruptDataError` if the body of one cannot be read."""
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
        wanted = reduce(pc.and_, conditions)
        found = pc.indices_nonzero(wanted).cast(pa.int32())
        if self._sql is not None and len(found):
            found = _matching(records, found, self._sql)
        if not len(found):
            return None
        chosen = rows if len(found) == rows.count else Rows(records, found)
        chosen.check_bodies()
        return chosen

    def _filter_conditions(self, rows: Rows) -> list[pa.Array]:
        wanted = self._filter
        conditions: list[pa.Array] = []
        if wanted.from_ms is not None:
            conditions.append(pc.greater_equal(rows.integers(STORE_TIMESTAMP, "q"), pa.scalar(wanted.from_ms)))
        if wanted.to_ms is not None:
            conditions.append(pc.less(rows.integers(STORE_TIMESTAMP, "q"), pa.scalar(wanted.to_ms)))
        if wanted.tags is not None:
            tags = BatchProperties(rows.properties()).get(TAGS)
            conditions.append(pc.is_in(tags, pa.array(sorted(wanted.tags), pa.string())))
        if wanted.texts:
            properties = BatchProperties(rows.properties())
            conditions += [_holds(condition, properties.get(condition.name)) for condition in wanted.texts]
        return conditions


def _holds(condition: TextCondition, texts: pa.Array) -> pa.Array:
    """Whether a condition holds for each text; null where it does not say, for want of a text."""
    if condition.kind == "is null":
        return pc.is_valid(texts) if condition.negated else pc.is_null(texts)
    if condition.kind == "in":
        among = pc.is_in(texts, pa.array(condition.texts, pa.string()))
        found = pc.if_else(pc.is_valid(texts), among, pa.scalar(None, pa.bool_()))
    else:
        search = {"starts with": pc.starts_with, "ends with": pc.ends_with, "contains": pc.match_substring}
        found = search[condition.kind](texts, condition.texts[0])
    return pc.invert(found) if condition.negated else found


def _matching(records: Records, numbers: pa.Array, wanted: SqlFilter) -> pa.Array:
    """Those of some rows whose properties match."""
    properties = Rows(records, numbers).properties().to_pylist()
    keep = map(wanted.matches_text, properties)
    return pc.filter(numbers, pa.array(keep, pa.bool_()))
