"""Leadership of a broker group: the story of all nodes together, and whether a node may be stopped."""

from __future__ import annotations

import pytest

from dledger_admin.health.reports import NodeAnswer, NodeReport, PeerReport, Survey
from dledger_admin.operations import clusters, leadership
from dledger_admin.operations.access import Access
from dledger_admin.operations.errors import MissingError, OperationError
from dledger_admin.operations.leadership import Leader, merge
from dledger_remoting.leaders import LeaderChangeRow as Row

ACCESS = Access("127.0.0.1:1")


def report(node: str, peers: tuple[PeerReport, ...], voters: tuple[str, ...]) -> NodeReport:
    leads = bool(peers)
    return NodeReport(
        node_id=node, group="broker-a", role="leader" if leads else "follower", term=3, leader_id="n0", ready=leads,
        commit_index=9, applied_index=9, first_position=0, last_position=90, durable_position=90, voters=list(voters),
        peers=peers,
    )  # fmt: skip


def survey(*silent: str, lag: int = 0) -> Survey:
    """Return the answers of a group of three that n0 leads; it has not heard from the silent ones for a minute."""
    voters = ("n0", "n1", "n2")
    peers = tuple(
        PeerReport(node_id=node, match_index=9 - lag, lag=lag, contact_ms=60_000 if node in silent else 10)
        for node in voters[1:]
    )
    nodes = {
        f"127.0.0.1:{number}": NodeAnswer(report=report(node, peers if node == "n0" else (), voters))
        for number, node in enumerate(voters)
        if node not in silent
    }
    return Survey([], dict(nodes))


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch):
    def serve(found: Survey) -> None:
        async def look(_: Access) -> Survey:
            return found

        monkeypatch.setattr(clusters, "look", look)

    return serve


def test_the_story_has_why_a_leader_was_elected_and_why_the_one_before_stopped() -> None:
    told = {
        "n0": [Row(10, 1, "n0", "elected"), Row(20, 1, None, "n0 handed over to n1: it stops"), Row(25, 2, "n1", "x")],
        "n1": [Row(12, 1, "n0", "n1 follows it"), Row(22, 2, "n1", "elected: n0 handed over to it")],
        "n2": [Row(13, 1, "n0", "n2 follows it"), Row(24, 2, "n1", "n2 follows it")],
    }
    assert merge(told) == [
        Leader("n1", 2, 22, "elected: n0 handed over to it; n0 handed over to n1: it stops"),
        Leader("n0", 1, 10, "elected"),
    ]


def test_a_leader_that_does_not_tell_is_known_by_its_followers_and_a_group_without_one_says_so() -> None:
    told = {
        "n1": [Row(12, 1, "n0", "n1 follows it"), Row(30, 1, None, "n1 stands for election: n0 is silent")],
        "n2": [Row(13, 1, "n0", "n2 follows it"), Row(29, 1, None, "n2 stands for election: n0 is silent")],
    }
    assert merge(told) == [
        Leader(None, 1, 30, "n1 stands for election: n0 is silent"),
        Leader("n0", 1, 12, "n1 follows it"),
    ]
    assert merge({}) == []


async def test_a_drain_names_the_heir_and_says_that_the_others_are_enough(group) -> None:
    group(survey())
    assert await leadership.what_draining_does(ACCESS, "broker-a", "n0") == [
        "n1 leads broker group broker-a instead of n0",
        "n0 may be stopped: 2 of 3 voters go on, and 2 are enough",
    ]


async def test_a_node_must_not_be_stopped_while_another_one_is_silent(group) -> None:
    group(survey("n2"))
    lines = await leadership.what_draining_does(ACCESS, "broker-a", "n1")
    assert lines[-1] == "n1 must not be stopped: only 1 of 3 voters would work, and 2 are needed"
    assert "n1 leads" in (await leadership.what_draining_does(ACCESS, "broker-a", "n0"))[0]


async def test_nobody_is_chosen_to_lead_who_is_far_behind(group) -> None:
    group(survey(lag=5_000))
    with pytest.raises(OperationError, match="no other voter of broker group broker-a is caught up"):
        await leadership.what_draining_does(ACCESS, "broker-a", "n0")


async def test_unknown_groups_and_nodes_are_named_with_those_that_there_are(group) -> None:
    group(survey())
    with pytest.raises(MissingError, match="broker group broker-z"):
        await leadership.what_draining_does(ACCESS, "broker-z", "n0")
    with pytest.raises(MissingError, match="n9 is no member of broker group broker-a; its members are n0, n1, n2"):
        await leadership.what_handing_over_does(ACCESS, "broker-a", "n9")
