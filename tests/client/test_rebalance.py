"""Shares of a group: every queue has exactly one reader, whatever the strategy and the order of the lists."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dledger_client import MessageQueue, allocate_average, allocate_consistent_hash

members = st.lists(st.text("abc123@#", min_size=1, max_size=6), min_size=1, max_size=12, unique=True)
queue_lists = st.integers(0, 40).map(lambda count: [MessageQueue("T", f"broker-{n % 3}", n // 3) for n in range(count)])


@pytest.mark.parametrize("strategy", [allocate_average, allocate_consistent_hash])
@given(members=members, queues=queue_lists, data=st.data())
def test_every_queue_has_exactly_one_reader(strategy, members, queues, data):
    shares = [strategy(member, data.draw(st.permutations(members)), queues) for member in members]
    assert sorted(queue for share in shares for queue in share) == sorted(queues)


@pytest.mark.parametrize("strategy", [allocate_average, allocate_consistent_hash])
def test_a_client_that_is_not_a_member_gets_nothing(strategy):
    assert strategy("stranger", ["a", "b"], [MessageQueue("T", "broker-a", 0)]) == []


@given(members=members, queues=queue_lists)
def test_average_shares_differ_by_at_most_one_and_are_contiguous(members, queues):
    shares = [allocate_average(member, members, queues) for member in members]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    ordered = sorted(queues)
    for share in shares:
        if share:
            start = ordered.index(share[0])
            assert share == ordered[start : start + len(share)]


@given(members=members, queues=queue_lists)
def test_with_consistent_hash_a_member_that_leaves_moves_only_its_own_queues(members, queues):
    gone, *left = members
    before = {queue: member for member in members for queue in allocate_consistent_hash(member, members, queues)}
    after = {queue: member for member in left for queue in allocate_consistent_hash(member, left, queues)}
    assert all(after[queue] == owner for queue, owner in before.items() if owner != gone and left)
