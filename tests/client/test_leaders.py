"""Whom a client believes to lead, and whom it asks while nobody knows."""

from __future__ import annotations

import asyncio

import pytest
from client_fakes import HandClock

from dledger_client.leaders import PROBE_INTERVAL_SECONDS, BrokerGroup


def group_of_three() -> BrokerGroup:
    group = BrokerGroup("broker-a")
    group.update_from_route("C", {0: "a:1", 2: "b:1", 3: "c:1"})
    return group


async def test_a_route_names_the_leader_and_all_nodes():
    group = group_of_three()
    assert (group.leader, group.addresses) == ("a:1", ("a:1", "b:1", "c:1"))


async def test_an_id_0_that_the_name_server_made_up_is_not_believed():
    group = BrokerGroup("broker-a")
    group.update_from_route("C", {0: "b:1", 2: "b:1", 3: "c:1"})
    assert group.leader is None
    assert group.addresses == ("b:1", "c:1")


async def test_a_newer_term_wins_and_an_older_one_is_ignored():
    group = group_of_three()
    group.learn("b:1", 5)
    group.learn("c:1", 4)
    assert group.leader == "b:1"
    group.learn("c:1", 6)
    assert (group.leader, group.term) == ("c:1", 6)


async def test_a_newer_term_without_a_leader_ends_the_belief_in_the_old_one():
    group = group_of_three()
    group.learn("a:1", 1)
    group.learn(None, 2)
    assert group.leader is None


async def test_a_leader_that_just_failed_is_not_believed_in_on_the_word_of_a_follower():
    group = group_of_three()
    group.learn("a:1", 1)
    group.doubt("a:1")
    group.learn("a:1", 1)
    group.update_from_route("C", {0: "a:1", 2: "b:1", 3: "c:1"})
    assert group.leader is None
    group.learn("a:1", 2)
    assert group.leader == "a:1"


async def test_a_doubted_leader_that_answers_is_the_leader():
    group = group_of_three()
    group.doubt("a:1")
    group.confirm("a:1")
    assert group.leader == "a:1"


async def test_a_changed_route_is_believed():
    group = group_of_three()
    group.doubt("a:1")
    group.update_from_route("C", {0: "b:1", 3: "c:1"})
    assert group.leader == "b:1"


async def test_doubts_about_a_follower_do_not_touch_the_leader():
    group = group_of_three()
    group.doubt("b:1")
    assert group.leader == "a:1"


async def test_without_a_leader_nodes_are_probed_one_after_the_other():
    group = group_of_three()
    group.doubt("a:1")
    loop = asyncio.get_running_loop()
    start = loop.time()
    asked = [await group.target(start + 60) for _ in range(6)]
    assert sorted(asked) == ["a:1", "a:1", "b:1", "b:1", "c:1", "c:1"]
    assert loop.time() - start >= 5 * PROBE_INTERVAL_SECONDS


async def test_all_who_wait_go_on_when_the_leader_is_found():
    with HandClock():  # nobody's turn to try a node comes meanwhile
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


async def test_readers_ask_the_leader_or_any_other_node_than_the_one_to_avoid():
    group = group_of_three()
    assert group.any_address() == "a:1"
    assert {group.any_address("a:1") for _ in range(4)} == {"b:1", "c:1"}
    assert BrokerGroup("empty").any_address() is None
