"""The committable offset, against a model that keeps every offset."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from dledger_client.consuming.progress import QueueProgress

steps = st.lists(
    st.one_of(
        st.tuples(st.just("pull"), st.lists(st.booleans(), min_size=1, max_size=8)),
        st.tuples(st.just("ack"), st.integers(0, 60)),
        st.tuples(st.just("withdraw"), st.integers(0, 60)),
    ),
    max_size=60,
)


@given(st.integers(0, 5), steps)
def test_the_committable_offset_is_the_lowest_unfinished_offset(start, script):
    progress = QueueProgress(start)
    next_offset = start
    unacknowledged: set[int] = set()
    for step, argument in script:
        if step == "pull":
            for matches in argument:
                if matches:
                    progress.deliver(next_offset, 10)
                    unacknowledged.add(next_offset)
                next_offset += 1
            progress.advance(next_offset)
        elif step == "ack":
            assert progress.acknowledge(argument) == (argument in unacknowledged)
            unacknowledged.discard(argument)
        elif argument in unacknowledged:
            progress.withdraw(argument)
            unacknowledged = {offset for offset in unacknowledged if offset < argument}
            next_offset = argument
        assert progress.committable == min(unacknowledged, default=next_offset)
        assert (progress.outstanding, progress.outstanding_bytes) == (len(unacknowledged), 10 * len(unacknowledged))


def test_advancing_keeps_the_offset_of_an_unfinished_message():
    progress = QueueProgress(0)
    progress.deliver(0)
    progress.advance(100)
    assert progress.committable == 0
    progress.acknowledge(0)
    assert progress.committable == 100
