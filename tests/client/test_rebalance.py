"""Shares of a group: every queue has exactly one reader, with any strategy and any order of the lists."""

from __future__ import annotations

import json
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dledger_client import (
    InvalidArgumentError,
    MessageQueue,
    allocate_average,
    allocate_by_config,
    allocate_circle,
    allocate_consistent_hash,
)
from dledger_client.consuming.rebalance import STRATEGIES

JAVA = json.loads((Path(__file__).parent / "java_strategies.json").read_text())
"""Shares by the strategies of RocketMQ's Java client, equal in 5.3.3 and 4.9.8, as places in the sorted queues."""

members = st.lists(st.text("abc123@#", min_size=1, max_size=6), min_size=1, max_size=12, unique=True)
queue_lists = st.integers(0, 40).map(lambda count: [MessageQueue("T", f"broker-{n % 3}", n // 3) for n in range(count)])


@pytest.mark.parametrize("strategy", [allocate_average, allocate_circle, allocate_consistent_hash])
@given(members=members, queues=queue_lists, data=st.data())
def test_every_queue_has_exactly_one_reader(strategy, members, queues, data):
    shares = [strategy(member, data.draw(st.permutations(members)), queues) for member in members]
    assert sorted(queue for share in shares for queue in share) == sorted(queues)


@pytest.mark.parametrize("strategy", [allocate_average, allocate_circle, allocate_consistent_hash])
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


@pytest.mark.parametrize("case", JAVA, ids=lambda case: f"{case['strategy']}-{len(case['shares'])}")
def test_shares_are_those_of_members_written_in_java(case):
    queues = sorted(
        MessageQueue(case["topic"], f"broker-{chr(ord('a') + group)}", queue_id)
        for group in range(case["groups"])
        for queue_id in range(case["queues"])
    )
    members = list(case["shares"])
    for member, places in case["shares"].items():
        assert STRATEGIES[case["strategy"]](member, members, queues) == [queues[place] for place in places]


@given(members=members, queues=queue_lists)
def test_allocate_circle_gives_queues_to_the_members_in_turn(members, queues):
    owner = {queue: member for member in members for queue in allocate_circle(member, members, queues)}
    ordered = sorted(queues)
    for place, queue in enumerate(ordered):
        assert owner[queue] == sorted(members)[place % len(members)]


def test_allocate_by_config_gives_the_listed_queues_and_a_share_of_the_retries():
    topic = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(4)]
    retries = [MessageQueue("%RETRY%CG", "broker-a", 0)]
    told = allocate_by_config(iter([("T", "broker-a", 3), ("T", "broker-a", 1), ("T", "gone", 0)]))
    assert told("a", ["a", "b"], topic) == [topic[1], topic[3]]
    assert allocate_by_config([])("b", ["a", "b"], topic) == []
    assert [told(member, ["a", "b"], retries) for member in "ab"] == [retries, []]


def test_a_configuration_that_names_no_queues_is_refused():
    with pytest.raises(InvalidArgumentError):
        allocate_by_config([("T", "broker-a")])
