"""Verdict of `dledger cluster health` on a cluster, from reports of name servers and nodes."""

from __future__ import annotations

import msgspec
import pytest
from click.testing import CliRunner

from dledger_admin.cli import main
from dledger_admin.commands import cluster_health
from dledger_admin.errors import AdminError
from dledger_admin.health.judge import judge
from dledger_admin.health.reports import (
    ClusterHealth,
    Limits,
    NameServerAnswer,
    NodeAnswer,
    NodeReport,
    PeerReport,
    Survey,
)
from dledger_admin.health.text import duration, render
from dledger_remoting.route import BrokerData

IDS = ("broker-a-n0", "broker-a-n1", "broker-a-n2")
ADDRESSES = {node_id: f"10.0.0.{number}:10911" for number, node_id in enumerate(IDS)}
NAME_SERVERS = ("ns1:9876", "ns2:9876")


class Cluster:
    """A healthy group of three with two name servers, whose answers a test changes."""

    def __init__(self) -> None:
        self.name_servers = {address: self.listing() for address in NAME_SERVERS}
        self.nodes: dict[str, NodeAnswer | str] = {
            ADDRESSES[node_id]: NodeAnswer(version="1.0", uptime_s=60, addresses=ADDRESSES, report=self.report(node_id))
            for node_id in IDS
        }

    @staticmethod
    def listing(*, without: str = "", leader: str = IDS[0]) -> NameServerAnswer:
        others = [node_id for node_id in IDS if node_id not in (leader, without)]
        listed = {0: ADDRESSES[leader]} | {number + 1: ADDRESSES[node_id] for number, node_id in enumerate(others)}
        return NameServerAnswer(address="", groups={"broker-a": BrokerData("c", "broker-a", listed)})

    @staticmethod
    def report(node_id: str) -> NodeReport:
        leads = node_id == IDS[0]
        return NodeReport(
            node_id=node_id,
            group="broker-a",
            role="leader" if leads else "follower",
            term=7,
            leader_id=IDS[0],
            commit_index=100,
            applied_index=100,
            first_position=0,
            last_position=9000,
            durable_position=9000,
            ready=leads,
            voters=list(IDS),
            disk_used_permille=120,
            peers=tuple(PeerReport(node_id=one, clock_ahead_ms=3) for one in IDS[1:]) if leads else (),
        )

    def change(self, node_id: str, **fields: object) -> None:
        """Let a node tell other things of itself."""
        answer = self.nodes[ADDRESSES[node_id]]
        assert isinstance(answer, NodeAnswer)
        own = {name: value for name, value in fields.items() if name in NodeAnswer.__struct_fields__}
        rest = {name: value for name, value in fields.items() if name not in own}
        report = msgspec.structs.replace(answer.report, **rest)
        self.nodes[ADDRESSES[node_id]] = msgspec.structs.replace(answer, **{"report": report, **own})

    def peer(self, node_id: str, **fields: object) -> None:
        """Let the leader say other things of a member."""
        answer = self.nodes[ADDRESSES[IDS[0]]]
        assert isinstance(answer, NodeAnswer)
        peers = tuple(
            msgspec.structs.replace(one, **fields) if one.node_id == node_id else one for one in answer.report.peers
        )
        self.change(IDS[0], peers=peers)

    def down(self, *node_ids: str) -> None:
        """Nodes that died a moment ago: name servers still list them."""
        for node_id in node_ids:
            self.nodes[ADDRESSES[node_id]] = f"cannot connect to {ADDRESSES[node_id]}: Connection refused"

    def gone(self, *node_ids: str) -> None:
        """Nodes that died a while ago: name servers have dropped them, and nobody asks them."""
        for node_id in node_ids:
            del self.nodes[ADDRESSES[node_id]]
            for address, answer in self.name_servers.items():
                data = answer.groups["broker-a"]
                left = {number: one for number, one in data.broker_addrs.items() if one != ADDRESSES[node_id]}
                groups = {"broker-a": msgspec.structs.replace(data, broker_addrs=left)}
                self.name_servers[address] = NameServerAnswer(address="", groups=groups)

    def judged(self, **limits: float) -> ClusterHealth:
        answers = [msgspec.structs.replace(one, address=address) for address, one in self.name_servers.items()]
        return judge(Survey(answers, self.nodes), Limits(**limits))

    def said(self) -> dict[str, str]:
        """Return the problems by subject; a test expects one of each."""
        health = self.judged()
        assert health.healthy == (not health.problems)
        by_subject = {problem.subject: problem.text for problem in health.problems}
        assert len(by_subject) == len(health.problems), health.problems
        return by_subject


def test_nothing_is_wrong_with_a_healthy_cluster():
    health = Cluster().judged()
    assert (health.healthy, health.problems) == (True, [])
    assert [(node.node, node.role, node.lag, node.clock_ahead_ms) for node in health.nodes] == [
        (IDS[0], "leader", 0, 0),
        (IDS[1], "follower", 0, 3),
        (IDS[2], "follower", 0, 3),
    ]
    text = render(health)
    assert text.splitlines()[-1] == "healthy: 3 nodes in 1 group"
    assert "broker-a      broker-a-n0  10.0.0.0:10911  leader" in text
    assert "12%   1.0      1m0s" in text


def test_a_node_that_died_a_moment_ago_does_not_answer():
    cluster = Cluster()
    cluster.down(IDS[1])
    cluster.peer(IDS[1], contact_ms=34_200, lag=12)
    assert cluster.said() == {
        IDS[1]: f"does not answer: cannot connect to {ADDRESSES[IDS[1]]}: Connection refused; its leader heard from it "
        "34 s ago"
    }
    row = cluster.judged().nodes[1]
    assert (row.node, row.role, row.lag, row.term) == (IDS[1], "no answer", 12, None)


def test_a_node_that_name_servers_have_dropped_is_missed_by_its_group():
    """A dead node vanishes from the route: only the leader knows that it should be there."""
    cluster = Cluster()
    cluster.gone(IDS[2])
    for node_id in IDS[:2]:
        cluster.change(node_id, addresses={one: ADDRESSES[one] for one in IDS[:2]})
    cluster.peer(IDS[2], contact_ms=90_000)
    said = cluster.said()
    assert list(said) == [IDS[2]]
    assert said[IDS[2]].startswith("is a member, and no name server lists it; its leader heard from it 90 s ago: start")


def test_a_node_without_registration_that_answers_is_told_from_a_dead_one():
    cluster = Cluster()
    cluster.name_servers["ns2:9876"] = cluster.listing(without=IDS[1])
    said = cluster.said()
    assert list(said) == [IDS[1]]
    assert said[IDS[1]].startswith("is not registered with ns2:9876")


@pytest.mark.parametrize("lost", [Cluster.down, Cluster.gone])
def test_a_group_without_a_majority_says_how_many_are_needed(lost):
    cluster = Cluster()
    lost(cluster, IDS[0], IDS[1])
    cluster.change(IDS[2], role="candidate", leader_id=None)
    problems = cluster.judged().problems
    assert ("broker-a", "no leader: 1 of 3 voters answer, 2 are needed: start those that are down") in [
        (problem.subject, problem.text) for problem in problems
    ]
    assert {IDS[0], IDS[1]} <= {problem.subject for problem in problems}


def test_an_election_is_told_from_a_lack_of_voters():
    cluster = Cluster()
    cluster.change(IDS[0], role="candidate", ready=False)
    assert cluster.said()["broker-a"].startswith("no leader: 3 of 3 voters answer, which is enough")


def test_a_leader_that_takes_no_writes_is_none():
    cluster = Cluster()
    cluster.change(IDS[0], ready=False)
    assert cluster.said()["broker-a"].startswith("broker-a-n0 leads in term 7 and takes no writes yet")


def test_a_deposed_leader_that_does_not_know_is_named():
    cluster = Cluster()
    cluster.change(IDS[1], role="leader", ready=True, term=6)
    assert cluster.said() == {
        IDS[1]: "still takes itself for the leader, in term 6, and broker-a-n0 leads in term 7",
    }


def test_a_group_that_is_away_is_named_with_what_can_be_done():
    cluster = Cluster()
    cluster.gone(*IDS)
    said = cluster.said()
    assert list(said) == ["broker-a"]
    assert "`dledger cluster forget broker-a`" in said["broker-a"]


def test_a_name_server_that_does_not_answer_or_lists_an_old_leader_is_named():
    cluster = Cluster()
    cluster.name_servers["ns1:9876"] = NameServerAnswer(address="", error="cannot connect")
    cluster.name_servers["ns2:9876"] = cluster.listing(leader=IDS[1])
    assert cluster.said() == {
        "ns1:9876": "does not answer: cannot connect",
        "ns2:9876": "lists 10.0.0.1:10911 as the leader of broker-a, and broker-a-n0 at 10.0.0.0:10911 leads: clients "
        "go astray",
    }


STATES = {
    "a full disk": ({"disk_used_permille": 1000}, "its disk is full: make room there"),
    "a nearly full disk": ({"disk_used_permille": 942}, "its disk is 94% full, below 90% expected: make room there"),
    "a failure": ({"failure": "commitlog: input/output error"}, "has failed and serves nothing: commitlog: input/outp"),
    "refused sends": ({"refusal": "no space: make room"}, "takes no messages: no space: make room"),
    "rotten bytes": ({"corrupt_bytes": 17}, "17 bytes of its log are corrupt"),
    "rotten snapshots": ({"rotten_snapshots": 1}, "1 of its snapshots are corrupt"),
    "views that do not follow": ({"applied_index": 40, "commit_index": 5_000}, "is 4960 entries behind, at most 1000"),
    "a drain": ({"is_draining": True}, "drains: it has left the name servers"),
}


@pytest.mark.parametrize(("fields", "text"), STATES.values(), ids=STATES)
def test_what_a_node_says_of_itself_is_said_in_words(fields, text):
    cluster = Cluster()
    cluster.change(IDS[1], **fields)
    said = cluster.said()
    assert list(said) == [IDS[1]]
    assert said[IDS[1]].startswith(text)


SEEN = {
    "lag": ({"lag": 1001}, "is 1001 entries behind, at most 1000 expected"),
    "a clock ahead": ({"clock_ahead_ms": 12_340}, "its clock is 12.3 s ahead of its leader's"),
    "a clock behind": ({"clock_ahead_ms": -5_001}, "its clock is 5.0 s behind its leader's"),
    "a link that is cut": ({"contact_ms": 8_000}, "answers here, and its leader has not heard from it for 8 s"),
}


@pytest.mark.parametrize(("fields", "text"), SEEN.values(), ids=SEEN)
def test_what_its_leader_says_of_a_node_is_said_in_words(fields, text):
    cluster = Cluster()
    cluster.peer(IDS[2], **fields)
    said = cluster.said()
    assert list(said) == [IDS[2]]
    assert said[IDS[2]].startswith(text)


def test_limits_are_what_they_were_set_to():
    cluster = Cluster()
    cluster.peer(IDS[1], lag=50)
    cluster.change(IDS[2], disk_used_permille=950)
    assert cluster.judged(lag=50, disk_used=0.96).healthy
    assert len(cluster.judged(lag=49, disk_used=0.95).problems) == 2


def test_a_learner_and_a_node_that_is_no_member_count_for_nothing():
    cluster = Cluster()
    cluster.change(IDS[0], voters=[IDS[0]], learners=[IDS[1]])
    cluster.change(IDS[1], voter=False)
    said = cluster.said()
    assert said[IDS[1]].startswith("is a learner")
    assert said[IDS[2]].startswith("is no member of its group")
    assert [node.role for node in cluster.judged().nodes] == ["leader", "learner", "no member"]


def test_several_versions_are_said_once():
    cluster = Cluster()
    cluster.change(IDS[1], version="1.1")
    assert cluster.said() == {"cluster": "several versions run: 1.0 on 2 nodes, 1.1 on 1 node"}


def test_a_broker_that_is_none_of_ours_is_shown_as_what_it_tells():
    cluster = Cluster()
    address = "10.0.0.9:10911"
    cluster.name_servers["ns1:9876"].groups["broker-a"].broker_addrs[9] = address
    cluster.nodes[address] = NodeAnswer(version="V5_3_3")
    said = cluster.said()
    assert said[address].startswith("tells nothing of a replicated log")
    assert said["cluster"] == "several versions run: 1.0 on 3 nodes, V5_3_3 on 1 node"


def test_durations_have_two_units():
    assert [duration(seconds) for seconds in (0, 59, 60, 3_700, 90_061)] == ["0s", "59s", "1m0s", "1h1m", "1d1h"]


def test_without_a_name_server_nothing_can_be_said(unused_tcp_port_factory):
    namesrv = f"127.0.0.1:{unused_tcp_port_factory()}"
    done = CliRunner().invoke(main, ["cluster", "health", "--namesrv", namesrv])
    assert done.exit_code == 3
    assert f"no name server at {namesrv}" in done.stderr


@pytest.mark.parametrize(("last", "code"), [("healthy", 0), ("ill", 3), ("silent", 1)])
def test_watching_outlives_name_servers_that_do_not_answer_and_ends_with_what_was_seen_last(monkeypatch, last, code):
    ill = Cluster()
    ill.down(IDS[1])
    looks = {"healthy": Cluster().judged(), "ill": ill.judged(), "silent": AdminError("no name server at ns1:9876")}
    to_come = [looks["silent"], looks["healthy"], looks[last]]

    def look(namesrv, limits):
        if not to_come:
            raise KeyboardInterrupt
        result = to_come.pop(0)
        if isinstance(result, AdminError):
            raise result
        return result

    monkeypatch.setattr(cluster_health, "_look", look)
    done = CliRunner().invoke(main, ["cluster", "health", "--watch", "0.1", "-o", "json"])
    assert done.exit_code == code
    assert done.stderr.count("no name server at ns1:9876") == (2 if last == "silent" else 1)
    assert [msgspec.json.decode(line)["healthy"] for line in done.stdout.splitlines()] == [True, last == "healthy"][
        : 1 if last == "silent" else 2
    ]
