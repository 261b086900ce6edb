"""Bulk reading: consecutive cuts join without gaps, and every range consists of whole entries of any size."""

import random

import pytest
from store_model import SEGMENT_BYTES, LoggedModel, body_leaving

from dledger.errors import TrimmedError
from dledger.format import HEADER_BYTES, parse_run
from dledger.store.ranges import find_cuts, last_records, read_run, record_spans
from dledger.types import EntryKind


@pytest.fixture
def filled(model: LoggedModel) -> LoggedModel:
    """Fill some segments with entries, with blanks between them."""
    model.fill(random.Random(3), 60)
    model.append(kind=EntryKind.MEMBERSHIP, term=2)
    model.fill(random.Random(4), 20, term=3)
    return model


def read_all(model: LoggedModel, start: int, end: int, max_bytes: int) -> bytes:
    data = b""
    while start < end:
        run = read_run(model.log, start, end, max_bytes)
        assert run.end > start
        data += run.data
        start = run.end
    assert start == end
    return data


@pytest.mark.parametrize("slice_bytes", [1, 1000, 3000, SEGMENT_BYTES, 1 << 30])
def test_slices_join_on_by_their_chain_and_hold_every_entry_once(filled: LoggedModel, slice_bytes: int):
    log = filled.log
    end = log.end_position
    cuts = find_cuts(log, 0, end, slice_bytes)
    stops = [*(cut.position for cut in cuts[1:]), end]
    metas = []
    for cut, stop in zip(cuts, stops, strict=True):
        assert cut.position // SEGMENT_BYTES == (stop - 1) // SEGMENT_BYTES
        found = parse_run(read_all(filled, cut.position, stop, 1 << 20), cut.previous_chain)
        assert found[0].index == cut.index
        metas += found
    assert metas == [meta for meta, _ in filled.entries]
    assert slice_bytes > 1 or len(cuts) == len(metas)


@pytest.mark.parametrize("max_bytes", [1, 500, 2000, 1 << 20])
def test_a_read_has_whole_entries_up_to_its_size_but_at_least_one(filled: LoggedModel, max_bytes: int):
    end = filled.log.end_position
    assert read_all(filled, 0, end, max_bytes) == b"".join(data for _, data in filled.entries)
    run = read_run(filled.log, 0, end, max_bytes)
    assert len(run.data) <= max_bytes or len(parse_run(run.data, 0)) == 1


def test_a_read_may_start_at_a_blank_and_ends_behind_one(model: LoggedModel):
    first = model.append(body_leaving(model.log, 100))
    second = model.append(bytes(200))
    end = model.log.end_position
    assert read_run(model.log, 0, end, 1 << 20).end == second.position == SEGMENT_BYTES
    assert read_run(model.log, first.end, end, 1 << 20) == (b"", SEGMENT_BYTES)
    assert read_run(model.log, 0, SEGMENT_BYTES, 1 << 20).end == SEGMENT_BYTES


def test_a_read_from_inside_an_entry_is_refused(filled: LoggedModel):
    with pytest.raises(ValueError, match="inside entry 1"):
        read_run(filled.log, filled.entries[1][0].position + 1, filled.log.end_position, 100)


def test_a_plan_may_start_anywhere_and_begins_with_the_entry_there(filled: LoggedModel):
    meta = filled.entries[7][0]
    assert find_cuts(filled.log, meta.position + 1, meta.end, 1)[0].index == 7


def test_cuts_of_a_trimmed_log_begin_at_the_chain_of_its_snapshot(filled: LoggedModel):
    filled.sync()
    filled.trim_to(2 * SEGMENT_BYTES)
    cuts = find_cuts(filled.log, 0, filled.log.end_position, 1 << 20)
    assert cuts[0].position == 2 * SEGMENT_BYTES
    before = next(meta for meta, _ in reversed(filled.entries) if meta.end <= 2 * SEGMENT_BYTES)
    assert cuts[0].previous_chain == before.chain_crc
    with pytest.raises(TrimmedError):
        read_run(filled.log, 0, filled.log.end_position, 100)


def test_spans_name_the_first_and_the_last_records_of_each_term(filled: LoggedModel):
    log = filled.log
    spans = record_spans(log, 0, log.end_position)
    with_records = [meta for meta, _ in filled.entries if meta.kind == EntryKind.GROUP and meta.size > HEADER_BYTES]
    expected = []
    for term in (1, 3):
        run = [meta for meta in with_records if meta.term == term]
        first, last = run[0], run[-1]
        expected.append((first.position + HEADER_BYTES, last.position + HEADER_BYTES, last.size - HEADER_BYTES))
    assert spans == expected
    assert record_spans(log, 100, 100) == []
    bodies = {meta.position + HEADER_BYTES: data[HEADER_BYTES:] for meta, data in filled.entries}
    assert last_records(log, 0, log.end_position) == [bodies[span.last_position] for span in spans]
