"""Rows that are due next, in memory: however many are overdue, only so many are known."""

from __future__ import annotations

import sys

from dledger_broker.views.soonrows import SoonRows
from dledger_broker.views.timerows import Row

LIMIT = 100


def kept_bytes(soon: SoonRows) -> int:
    return sum(sys.getsizeof(kept) for kept in vars(soon).values() if isinstance(kept, list | set))


def hand_out(soon: SoonRows, rows: list[Row]) -> None:
    soon.extend(rows, rows[-1][:2])
    taken = soon.take(1 << 60, len(rows))
    assert taken == rows


def test_what_was_handed_out_and_is_gone_takes_no_memory_while_others_are_overdue() -> None:
    soon = SoonRows(LIMIT)
    sizes = []
    for number in range(200):
        rows = [Row(number, number * LIMIT + one, 10) for one in range(LIMIT)]
        hand_out(soon, rows)
        soon.remove(row.position for row in rows)
        sizes.append(kept_bytes(soon))
    assert max(sizes[100:]) <= max(sizes[:100])


def test_what_was_handed_out_and_is_pending_comes_again_however_much_else_is_gone() -> None:
    soon = SoonRows(LIMIT)
    left = []
    for number in range(20):
        rows = [Row(number, number * LIMIT + one, 10) for one in range(LIMIT)]
        hand_out(soon, rows)
        soon.remove(row.position for row in rows[1:])
        left.append(rows[0])
    soon.extend([], None)
    assert soon.take(1 << 60, 1000) == []
    assert soon.take(1 << 60, 1000) == left
