"""The client's belief about the leader, and its queries while no leader is known."""

from __future__ import annotations

import asyncio

import pytest
from client_fakes import HandClock

from dledger_client.cluster.leaders import PROBE_INTERVAL_SECONDS, BrokerGroup


def group_of_three() -> BrokerGroup:
    group = BrokerGroup("broker-a")
    group.update_from_route("C", {0: "a:1", 2: "b:1", 3: "c:1"})
    return group


ROUTE = ("update_from_route", "C", {0: "a:1", 2: "b:1", 3: "c:1"})
FAILED = [("learn", "a:1", 1), ("doubt", "a:1"), ("learn", "a:1", 1), ROUTE]
STORIES = {
    "a route names the leader": ([], "a:1"),
    "an older term is ignored": ([("learn", "b:1", 5), ("learn", "c:1", 4)], "b:1"),
    "a newer term wins": ([("learn", "b:1", 5), ("learn", "c:1", 6)], "c:1"),
    "a newer term has no leader": ([("learn", "a:1", 1), ("learn", None, 2)], None),
    "a leader that just failed is named by a follower": (FAILED, None),
    "that leader has a newer term": ([*FAILED, ("learn", "a:1", 2)], "a:1"),
    "a doubted leader answers": ([("doubt", "a:1"), ("confirm", "a:1")], "a:1"),
    "the route changes": ([("doubt", "a:1"), ("update_from_route", "C", {0: "b:1", 3: "c:1"})], "b:1"),
    "a follower is doubted": ([("doubt", "b:1")], "a:1"),
}


@pytest.mark.parametrize(("steps", "leader"), STORIES.values(), ids=STORIES)
async def test_the_leader_is_the_one_that_the_newest_trusted_news_names(steps, leader):
    group = group_of_three()
    assert group.addresses == ("a:1", "b:1", "c:1")
    for step, *arguments in steps:
        getattr(group, step)(*arguments)
    assert group.leader == leader
    terms = [arguments[1] for step, *arguments in steps if step == "learn"]
    assert not terms or group.term == max(terms)


async def test_an_acting_leader_in_a_route_is_not_taken_for_the_leader():
    group = BrokerGroup("broker-a")
    group.update_from_route("C", {0: "b:1", 2: "b:1", 3: "c:1"})
    assert group.leader is None
    assert group.addresses == ("b:1", "c:1")


async def test_without_a_leader_nodes_are_probed_one_after_the_other():
    group = group_of_three()
    group.doubt("a:1")
    loop = asyncio.get_running_loop()
    start = loop.time()
    asked = [await group.target(start + 60) for _ in range(6)]
    assert sorted(asked) == ["a:1", "a:1", "b:1", "b:1", "c:1", "c:1"]
    assert loop.time() - start >= 5 * PROBE_INTERVAL_SECONDS


async def test_a_found_leader_wakes_all_waiting_calls():
    with HandClock():  # the clock stands, so no node's turn comes meanwhile
        group = group_of_three()
        group.doubt("a:1")
        deadline = asyncio.get_running_loop().time() + 60
        await group.target(deadline)
        waiting = [asyncio.create_task(group.target(deadline)) for _ in range(100)]
        await asyncio.sleep(0)
        group.learn("b:1", 7)
        assert await asyncio.gather(*waiting) == ["b:1"] * 100


async def test_waiting_ends_at_the_deadline():
    group = BrokerGroup("broker-a")
    with pytest.raises(TimeoutError):
        await group.target(asyncio.get_running_loop().time() + 0.01)


async def test_any_address_returns_the_leader_or_a_node_other_than_the_avoided():
    group = group_of_three()
    assert group.any_address() == "a:1"
    assert {group.any_address("a:1") for _ in range(4)} == {"b:1", "c:1"}
    assert BrokerGroup("empty").any_address() is None
