"""`dledger top`: what one glance tells, whole or half-down, and how it looks on a terminal."""

from __future__ import annotations

import io
import json

import msgspec
import pytest
from command_fakes import FakeAdmin, answering, dledger, refused, use_fakes
from rich.console import Console

from dledger_admin.commands.top import draw
from dledger_admin.health.reports import NameServerAnswer, NodeAnswer, NodeReport, PeerReport, Survey
from dledger_admin.operations import access, watching
from dledger_admin.operations.watching import LateGroup, make_glance
from dledger_client import ConnectError
from dledger_remoting.route import BrokerData

IDS = ("n0", "n1", "n2")
ADDRESSES = {node_id: f"10.0.0.{number}:10911" for number, node_id in enumerate(IDS)}


def survey(*down: str, syncs: int = 10, sync_seconds: float = 0.05) -> Survey:
    listing = BrokerData("c", "broker-a", dict(enumerate(ADDRESSES.values())))
    nodes: dict[str, NodeAnswer | str] = {}
    for node_id, address in ADDRESSES.items():
        leads = node_id == "n0"
        report = NodeReport(
            node_id=node_id, group="broker-a", role="leader" if leads else "follower", term=7, leader_id="n0",
            commit_index=100, applied_index=100, first_position=0, last_position=9000, durable_position=9000,
            ready=leads, voters=list(IDS), syncs=syncs, sync_seconds=sync_seconds,
            peers=tuple(PeerReport(node_id=one) for one in IDS[1:]) if leads else (),
        )  # fmt: skip
        answer = NodeAnswer(stored_per_s=50.0, delivered_per_s=20.0, addresses=ADDRESSES, report=report)
        nodes[address] = "does not answer: refused" if node_id in down else answer
    return Survey([NameServerAnswer(address="ns:1", groups={"broker-a": listing})], nodes)


@pytest.fixture
def cluster(monkeypatch):
    """Let the command look at this survey."""
    use_fakes(monkeypatch)
    shown = [survey()]

    async def look(_access):
        return shown[0]

    monkeypatch.setattr(watching, "look", look)
    monkeypatch.setattr(access, "Admin", lambda namesrv, **_: FakeAdmin(namesrv))
    return shown


def test_once_prints_nodes_rates_and_late_groups(cluster):
    text = dledger("top", "--once")
    assert text.startswith("Healthy: 3 nodes in 1 broker group work.")
    assert "150 messages stored and 60 delivered a second" in text
    assert "billing" in text
    told = json.loads(dledger("top", "--once", "-o", "json"))
    assert [(node["role"], node["sync_ms"]) for node in told["nodes"]] == [
        ("leader", 5.0),
        ("follower", 5.0),
        ("follower", 5.0),
    ]
    assert told["late"] == [{"group": "billing", "members": 0, "lag": 4}]


def test_a_half_down_cluster_is_shown_with_what_is_not_known(cluster, monkeypatch):
    cluster[0] = survey("n0", "n1")
    monkeypatch.setattr(FakeAdmin, "groups", answering(ConnectError("10.0.0.0:10911", "refused")))
    text = dledger("top", "--once")
    assert text.startswith("Not healthy: ")
    assert text.count("no answer") == 2
    assert "the lag of consumer groups is not known: " in text


def test_sync_times_are_those_between_two_glances():
    before = {"n0": (100.0, survey().nodes[ADDRESSES["n0"]].report)}
    glance = make_glance(survey(syncs=30, sync_seconds=0.09), [], "", before, 110.0)
    assert (glance.nodes[0].sync_ms, glance.nodes[0].syncs_per_s) == (pytest.approx(2.0), 2.0)
    assert glance.nodes[1].syncs_per_s is None
    quiet = make_glance(survey(), [], "", before, 110.0)
    assert (quiet.nodes[0].sync_ms, quiet.nodes[0].syncs_per_s) == (None, 0.0)


def test_no_name_server_is_not_called_healthy():
    dead = Survey([NameServerAnswer(address="ns:1", error="refused")], {})
    glance = make_glance(dead, [], "", {}, 1.0)
    assert glance.sentence.startswith("Not healthy: no name server answers")


@pytest.mark.parametrize("height", [10, 24, 60])
def test_the_live_view_fits_its_terminal_and_says_what_it_leaves_out(height):
    late = [LateGroup(f"group-{number}", 1, number) for number in range(30)]
    glance = make_glance(survey("n1"), late, "", {}, 1.0)
    glance = msgspec.structs.replace(glance, nodes=glance.nodes * 10, problems=glance.problems * 10)
    console = Console(file=io.StringIO(), width=140, height=height, force_terminal=True)
    console.print(draw(glance, height))
    lines = console.file.getvalue().splitlines()
    assert len(lines) <= height
    assert ("more nodes" in console.file.getvalue()) == (height < 60)


def test_a_name_with_control_characters_does_not_reach_the_terminal():
    glance = make_glance(survey(), [LateGroup("\x1b[2Jx", 1, 1)], "", {}, 1.0)
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    console.print(draw(glance, 40))
    assert "\x1b[2J" not in console.file.getvalue()


def test_the_live_view_needs_a_terminal():
    assert "--once" in refused("top", code=2)
    assert "--once" in refused("top", "-o", "json", code=2)
