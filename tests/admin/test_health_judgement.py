"""Verdict of `dledger cluster health` on a cluster, from reports of name servers and nodes."""

from __future__ import annotations

import socket

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
)  # fmt: skip
from dledger_admin.health.text import duration, render
from dledger_remoting.route import BrokerData, RefusedGroup

IDS = ("broker-a-n0", "broker-a-n1", "broker-a-n2")
ADDRESSES = {node_id: f"10.0.0.{number}:10911" for number, node_id in enumerate(IDS)}
NAME_SERVERS = ("ns1:9876", "ns2:9876")


class Cluster:
    """A healthy group of three with two name servers. A test changes their answers."""

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
            node_id=node_id, group="broker-a", role="leader" if leads else "follower", term=7, leader_id=IDS[0],
            commit_index=100, applied_index=100, first_position=0, last_position=9000, durable_position=9000,
            ready=leads, voters=list(IDS), disk_used_permille=120,
            peers=tuple(PeerReport(node_id=one, clock_ahead_ms=3) for one in IDS[1:]) if leads else (),
        )  # fmt: skip

    def change(self, node_id: str, **fields: object) -> None:
        """Change fields of a node's own report."""
        answer = self.nodes[ADDRESSES[node_id]]
        assert isinstance(answer, NodeAnswer)
        own = {name: value for name, value in fields.items() if name in NodeAnswer.__struct_fields__}
        rest = {name: value for name, value in fields.items() if name not in own}
        report = msgspec.structs.replace(answer.report, **rest)
        self.nodes[ADDRESSES[node_id]] = msgspec.structs.replace(answer, **{"report": report, **own})

    def peer(self, node_id: str, **fields: object) -> None:
        """Change fields of the leader's report about a member."""
        answer = self.nodes[ADDRESSES[IDS[0]]]
        assert isinstance(answer, NodeAnswer)
        peers = tuple(
            msgspec.structs.replace(one, **fields) if one.node_id == node_id else one for one in answer.report.peers
        )
        self.change(IDS[0], peers=peers)

    def down(self, *node_ids: str) -> None:
        """Let nodes have died a moment ago: name servers still list them."""
        for node_id in node_ids:
            self.nodes[ADDRESSES[node_id]] = (
                f"does not answer: cannot connect to {ADDRESSES[node_id]}: Connection refused"
            )

    def gone(self, *node_ids: str) -> None:
        """Let nodes have died a while ago: name servers have dropped them, and nobody asks them."""
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
        """Return the problems by subject. A test expects one of each."""
        health = self.judged()
        assert health.healthy == (not health.problems)
        by_subject = {problem.subject: problem.text for problem in health.problems}
        assert len(by_subject) == len(health.problems), health.problems
        return by_subject

    def name_server(self, address: str, **fields: object) -> None:
        """Change fields of a name server's answer."""
        self.name_servers[address] = msgspec.structs.replace(self.name_servers[address], **fields)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_nothing_is_wrong_with_a_healthy_cluster(cluster):
    health = cluster.judged()
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


def test_a_node_that_died_a_moment_ago_does_not_answer(cluster):
    cluster.down(IDS[1])
    cluster.peer(IDS[1], contact_ms=34_200, lag=12)
    refused = f"cannot connect to {ADDRESSES[IDS[1]]}: Connection refused"
    assert cluster.said() == {IDS[1]: f"does not answer: {refused}; its leader heard from it 34 s ago"}
    row = cluster.judged().nodes[1]
    assert (row.node, row.role, row.lag, row.term) == (IDS[1], "no answer", 12, None)


def test_a_node_that_name_servers_have_dropped_is_missed_by_its_group(cluster):
    """A dead node vanishes from the route. Only the leader knows that it should be there."""
    cluster.gone(IDS[2])
    for node_id in IDS[:2]:
        cluster.change(node_id, addresses={one: ADDRESSES[one] for one in IDS[:2]})
    cluster.peer(IDS[2], contact_ms=90_000)
    said = cluster.said()
    assert list(said) == [IDS[2]]
    assert said[IDS[2]].startswith("is a member, and no name server lists it; its leader heard from it 90 s ago: start")


@pytest.mark.parametrize("lost", [Cluster.down, Cluster.gone])
def test_a_group_without_a_majority_says_how_many_are_needed(cluster, lost):
    lost(cluster, IDS[0], IDS[1])
    cluster.change(IDS[2], role="candidate", leader_id=None)
    problems = cluster.judged().problems
    remedy = "start those that are down, or see `dledger node rescue`"
    needed = ("broker-a", f"no leader: 1 of 3 voters answer, 2 are needed: {remedy}")
    assert needed in [(problem.subject, problem.text) for problem in problems]
    assert {IDS[0], IDS[1]} <= {problem.subject for problem in problems}


def test_without_a_leader_blank_learners_do_not_count_as_voters_that_answer(cluster):
    for node_id in IDS:
        cluster.change(node_id, role="follower", ready=False, voter=node_id == IDS[0])
    assert cluster.said()["broker-a"].startswith("no leader: 1 of 3 voters answer, 2 are needed")


def test_a_name_server_that_does_not_answer_or_lists_an_old_leader_is_named(cluster):
    cluster.name_servers["ns1:9876"] = NameServerAnswer(address="", error="cannot connect")
    cluster.name_servers["ns2:9876"] = cluster.listing(leader=IDS[1])
    old = "lists 10.0.0.1:10911 as the leader of broker-a, and broker-a-n0 at 10.0.0.0:10911 leads: clients go astray"
    assert cluster.said() == {"ns1:9876": "does not answer: cannot connect", "ns2:9876": old}


def test_an_absent_broker_group_and_two_groups_of_one_name_are_reported(cluster):
    refused = {"broker-a": RefusedGroup("staging", "10.9.9.9:10911")}
    cluster.name_server("ns1:9876", refused=refused)
    assert "cluster staging at 10.9.9.9:10911 is refused" in cluster.said()["ns1:9876"]
    cluster.name_server("ns1:9876", refused={})
    cluster.gone(*IDS)
    said = cluster.said()
    assert list(said) == ["broker-a"]
    assert "`dledger cluster forget broker-a`" in said["broker-a"]


def report(**fields):
    return lambda cluster: cluster.change(IDS[1], **fields)


def peer(**fields):
    return lambda cluster: cluster.peer(IDS[1], **fields)


def leader(**fields):
    return lambda cluster: cluster.change(IDS[0], **fields)


def unregister(cluster):
    cluster.name_servers["ns2:9876"] = cluster.listing(without=IDS[1])


DEPOSED = {"role": "leader", "ready": True, "term": 6}
STATES = {
    "a full disk": (report(disk_used_permille=1000), "its disk is full: make room there"),
    "a nearly full disk": (report(disk_used_permille=942), "its disk is 94% full, below 90% expected: make room there"),
    "a failure": (report(failure="commitlog: EIO"), "has failed and serves nothing: commitlog: EIO"),
    "refused sends": (report(refusal="no space: make room"), "takes no messages: no space: make room"),
    "rotten bytes": (report(corrupt_bytes=17), "17 bytes of its log are corrupt"),
    "rotten snapshots": (report(rotten_snapshots=1), "1 of its snapshots are corrupt"),
    "slow views": (report(applied_index=40, commit_index=5_000), "is 4960 entries behind, at most 1000"),
    "a drain": (report(is_draining=True), "drains: it has left the name servers"),
    "not registered": (unregister, "is not registered with ns2:9876"),
    "deposed": (report(**DEPOSED), "still takes itself for the leader, in term 6, and broker-a-n0 leads in term 7"),
    "lag": (peer(lag=1001), "is 1001 entries behind, at most 1000 expected"),
    "a clock ahead": (peer(clock_ahead_ms=12_340), "its clock is 12.3 s ahead of its leader's"),
    "a clock behind": (peer(clock_ahead_ms=-5_001), "its clock is 5.0 s behind its leader's"),
    "a cut link": (peer(contact_ms=8_000), "answers here, and its leader has not heard from it for 8 s"),
    "an election": (leader(role="candidate", ready=False), "no leader: 3 of 3 voters answer, which is enough"),
    "no writes yet": (leader(ready=False), "broker-a-n0 leads in term 7 and takes no writes yet"),
    "two versions": (report(version="1.1"), "several versions run: 1.0 on 2 nodes, 1.1 on 1 node"),
}
SUBJECTS = {"an election": "broker-a", "no writes yet": "broker-a", "two versions": "cluster"}
"""Subjects of problems that are not those of the second node."""


@pytest.mark.parametrize("state", STATES)
def test_health_describes_the_one_problem_that_a_node_or_its_leader_reports(cluster, state):
    harm, text = STATES[state]
    harm(cluster)
    ((subject, said),) = cluster.said().items()
    assert subject == SUBJECTS.get(state, IDS[1])
    assert said == text if state in {"deposed", "two versions"} else said.startswith(text)


def test_a_disk_above_the_watermark_is_a_warning_and_no_problem(cluster):
    text = "the disk of broker-a-n1 is 85% full: make room"
    cluster.change(IDS[1], disk_used_permille=850, disk_warning=text)
    judged = cluster.judged()
    assert judged.healthy
    assert [(one.subject, one.text) for one in judged.warnings] == [(IDS[1], text)]
    assert f"warning: {IDS[1]}: the disk of broker-a-n1 is 85% full" in render(judged)
    cluster.change(IDS[1], disk_used_permille=950)
    assert not cluster.judged().warnings, "it is a problem by now, and told once"


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        (lambda cluster: None, "3 of 3 voters: 1 more failure is survived"),
        (peer(contact_ms=34_000), "2 of 3 voters: the next failure stops writes"),
        (report(voter=False), "2 of 3 voters: the next failure stops writes"),
        (report(failure="EIO"), "2 of 3 voters: the next failure stops writes"),
    ],
)
def test_health_counts_only_healthy_voters_toward_survivable_failures(cluster, harm, text):
    harm(cluster)
    (line,) = cluster.judged().survival
    assert (line.subject, line.text) == ("broker-a", text)
    assert f"broker-a: {text}" in render(cluster.judged())


def test_health_tells_what_retention_removes_next_and_when(cluster):
    gauges = dict.fromkeys(("bytes", "due_seconds", "growth_bytes", "held"), 0.0)

    def told(**changed: float) -> str:
        cluster.change(IDS[0], gauges={f"retention_next_{name}": value for name, value in (gauges | changed).items()})
        (line,) = cluster.judged().retention
        assert line.subject == "broker-a"
        return line.text

    assert told() == "retention takes nothing: the log has one segment, which is being written"
    assert told(bytes=3 << 29, due_seconds=1.8e9).startswith("retention takes 1.5 GiB next, at 2027-01-1")
    grown = "retention takes 1.0 MiB next, once the log has grown by 512 bytes by retention_bytes"
    assert told(bytes=1 << 20, growth_bytes=512) == grown
    held = "; a pin or an open transaction keeps them until then"
    assert told(bytes=1 << 20, growth_bytes=512, held=1).endswith(held)


def test_health_judges_by_the_given_limits(cluster):
    cluster.peer(IDS[1], lag=50)
    cluster.change(IDS[2], disk_used_permille=950)
    assert cluster.judged(lag=50, disk_used=0.96).healthy
    assert len(cluster.judged(lag=49, disk_used=0.95).problems) == 2


def test_health_names_learners_and_nodes_outside_the_group(cluster):
    cluster.change(IDS[0], voters=[IDS[0]], learners=[IDS[1]])
    cluster.change(IDS[1], voter=False)
    said = cluster.said()
    assert said[IDS[1]].startswith("is a learner")
    assert said[IDS[2]].startswith("is no member of its group")
    assert [node.role for node in cluster.judged().nodes] == ["leader", "learner", "no member"]


def test_health_reports_a_foreign_broker_and_its_version(cluster):
    address = "10.0.0.9:10911"
    cluster.name_servers["ns1:9876"].groups["broker-a"].broker_addrs[9] = address
    cluster.nodes[address] = NodeAnswer(version="V5_3_3")
    said = cluster.said()
    assert said[address].startswith("tells nothing of a replicated log")
    assert said["cluster"] == "several versions run: 1.0 on 3 nodes, V5_3_3 on 1 node"


def test_durations_have_two_units():
    assert [duration(seconds) for seconds in (0, 59, 60, 3_700, 90_061)] == ["0s", "59s", "1m0s", "1h1m", "1d1h"]


def test_without_a_name_server_nothing_can_be_said():
    with socket.socket() as taken:  # holds the port, so that no other process can listen there
        taken.bind(("127.0.0.1", 0))
        namesrv = f"127.0.0.1:{taken.getsockname()[1]}"
        done = CliRunner().invoke(main, ["cluster", "health", "--namesrv", namesrv])
    assert done.exit_code == 3
    assert f"no name server at {namesrv}" in done.stderr


@pytest.mark.parametrize(("last", "code"), [("healthy", 0), ("ill", 3), ("silent", 1)])
def test_watching_outlives_silent_name_servers_and_exits_with_the_last_verdict(monkeypatch, last, code):
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

    monkeypatch.setattr(cluster_health, "_check_health", look)
    done = CliRunner().invoke(main, ["cluster", "health", "--watch", "0.1", "-o", "json"])
    assert done.exit_code == code
    assert done.stderr.count("no name server at ns1:9876") == (2 if last == "silent" else 1)
    told = [True] if last == "silent" else [True, last == "healthy"]
    assert [msgspec.json.decode(line)["healthy"] for line in done.stdout.splitlines()] == told
