"""Tables of connected clients: each node's own, and the leader's merged view of all."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

import pytest

from dledger.net.errors import PeerError, PeerGoneError
from dledger.statemachine import Leadership
from dledger.types import ReplicaId
from dledger_broker.clients import gossip
from dledger_broker.clients.gossip import NODE_TIMEOUT_S, Gossip
from dledger_broker.clients.tables import CLIENT_TIMEOUT_S, ClientRow, LocalClients
from dledger_broker.features import COMMANDS
from dledger_broker.kernel.leadership import Group
from dledger_broker.testing import FakeEnvironment
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from dledger_remoting.hosts import HostAddress

OnReply = Callable[[bytes | PeerError], None]


class Channel:
    """A client's connection."""

    def __init__(self) -> None:
        self.address = HostAddress("10.0.0.9", 40000)
        self.client_ids: set[str] = set()


class Network:
    """Nodes that reach each other unless cut; a request is answered at the end of the turn."""

    def __init__(self, *node_ids: str) -> None:
        self.env = FakeEnvironment()
        self.down: set[str] = set()
        self.largest = 0
        self.nodes = {node_id: Node(self, node_id, node_ids) for node_id in node_ids}
        for node in self.nodes.values():
            node.gossip.start(node)
        self.settle()

    def settle(self, seconds: float = 0.1) -> None:
        self.env.advance(seconds)

    def lead(self, leader: str | None, term: int = 1) -> None:
        for node_id, node in self.nodes.items():
            own = node_id == leader
            node.group.on_leadership(Leadership(term, leader, is_leader=own, ready=own))
        self.settle()


class Node:
    """One node's part in the gossip; it is its own channel to the others."""

    def __init__(self, network: Network, node_id: str, node_ids: tuple[str, ...]) -> None:
        self.network = network
        self.node_id = node_id
        self.group = Group(node_id, f"10.0.0.1:{node_id[1:]}")
        self.notified: list[set[str]] = []
        self.told: list[str] = []
        """The clients that got a request 40 from this node."""
        self.joined: list[ClientRow] = []
        self.learned: dict[str, tuple[int, ...]] = {}
        self.holding = False
        self.gossip = Gossip(
            network.env,
            self.group,
            [other for other in node_ids if other != node_id],
            COMMANDS.kinds,
            lambda node_id, kinds: self.learned.update({node_id: kinds}),
        )
        self.gossip.attach_members(self)
        self.gossip.attach_pulls(self)

    def __len__(self) -> int:
        return int(self.holding)

    def release_groups(self, groups: set[str]) -> None:
        raise AssertionError("whoever tells members has their pulls released")

    def ensure_all(self, rows: Iterable[ClientRow]) -> None:
        self.joined.extend(rows)

    def notify(self, groups: set[str], clients: Container[str] | None) -> None:
        self.notified.append(groups)
        for group in groups:
            for channel in self.gossip.local.channels_of(group, clients):
                self.told.extend(channel.client_ids)

    def submit(self, to: str, data: bytes, on_reply: OnReply, timeout_s: float) -> bool:
        if {to, self.node_id} & self.network.down:
            return False
        self.network.largest = max(self.network.largest, len(data))

        def deliver() -> None:
            if {to, self.node_id} & self.network.down:
                on_reply(PeerGoneError("the link was lost"))
            else:
                self.network.nodes[to].gossip.on_request(ReplicaId(self.node_id, "i"), data, on_reply)

        self.network.env.call_soon(deliver)
        return True

    def heartbeat(
        self,
        client_id: str,
        group: str = "CG",
        topic: str = "T1",
        channel: Channel | None = None,
        expression_type: str = "TAG",
    ) -> Channel:
        channel = channel or Channel()
        subscription = SubscriptionData(topic, expression_type=expression_type)
        data = HeartbeatData(
            client_id, [ProducerData("PG")], [ConsumerData(group, subscription_data_set=[subscription])]
        )
        self.gossip.local.heartbeat(channel, data, 0, 479, self.network.env.now())
        return channel

    def members(self, group: str = "CG") -> list[str]:
        return self.gossip.merged.members(group)


@pytest.fixture
def network() -> Network:
    network = Network("n0", "n1", "n2")
    network.lead("n0")
    return network


def test_every_node_learns_where_clients_reach_the_others(network: Network) -> None:
    for node in network.nodes.values():
        assert node.group.leader_address == "10.0.0.1:0"


def test_the_leader_knows_the_clients_of_all_nodes(network: Network) -> None:
    leader, follower = network.nodes["n0"], network.nodes["n1"]
    leader.heartbeat("c1")
    follower.heartbeat("c2")
    network.settle()
    assert leader.members() == ["c1", "c2"]
    assert [row.client_id for row in leader.joined] == ["c1", "c2"]


def test_a_large_table_is_told_in_pieces(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossip, "TABLE_BYTES", 1000)
    ids = [f"c{number:02d}" for number in range(40)]
    network.lead(None)
    for client_id in ids:
        network.nodes["n1"].heartbeat(client_id)
    network.lead("n0", term=2)
    network.settle(1.0)
    assert network.nodes["n0"].members() == ids
    assert network.largest < 1500


def test_members_are_notified_on_every_node_when_a_group_changes(network: Network) -> None:
    network.nodes["n1"].heartbeat("c1")
    network.settle()
    assert [node.notified for node in network.nodes.values()] == [[{"CG"}]] * 3


@pytest.mark.parametrize("order", [("n0", "n1", "n2"), ("n2", "n1", "n0")])
def test_a_client_that_heartbeats_to_all_nodes_counts_once_and_notifies_once(
    network: Network, order: tuple[str, ...]
) -> None:
    channels = {}
    for node_id in order:
        channels[node_id] = network.nodes[node_id].heartbeat("c1")
        network.settle()
    assert network.nodes["n0"].members() == ["c1"]
    assert [node.notified for node in network.nodes.values()] == [[{"CG"}]] * 3
    for node_id in order:
        network.nodes[node_id].gossip.local.channel_lost(channels[node_id])
        network.settle()
    assert network.nodes["n0"].members() == []
    assert [node.notified for node in network.nodes.values()] == [[{"CG"}, {"CG"}]] * 3


def test_each_member_is_told_by_one_node(network: Network) -> None:
    """Told twice at once, a C++ client on two cores stands: both its threads wait for a pull that neither takes in."""
    leader, *followers = network.nodes.values()
    for node_id in ("n0", "n1", "n2"):
        network.nodes[node_id].heartbeat("everywhere")
    for node_id in ("n1", "n2"):
        network.nodes[node_id].heartbeat("at-followers")
    network.nodes["n2"].heartbeat("at-one")
    network.settle()
    for node in network.nodes.values():
        node.told.clear()
    leaving = network.nodes["n1"].heartbeat("leaves")
    network.settle()
    assert sorted(leader.told + followers[0].told + followers[1].told) == [
        "at-followers", "at-one", "everywhere", "leaves"
    ]  # fmt: skip
    assert leader.told == ["everywhere"]
    network.nodes["n1"].gossip.local.channel_lost(leaving)
    network.settle()
    assert leader.told == ["everywhere"] * 2
    assert sorted(followers[0].told + followers[1].told) == ["at-followers"] * 2 + ["at-one"] * 2 + ["leaves"]


def test_a_repeated_heartbeat_notifies_nobody(network: Network) -> None:
    channel = network.nodes["n1"].heartbeat("c1")
    network.settle()
    before = [len(node.notified) for node in network.nodes.values()]
    network.nodes["n1"].heartbeat("c1", channel=channel)
    network.settle()
    assert [len(node.notified) for node in network.nodes.values()] == before


def test_a_changed_subscription_notifies_the_group(network: Network) -> None:
    channel = network.nodes["n0"].heartbeat("c1")
    network.nodes["n0"].heartbeat("c1", topic="T2", channel=channel)
    assert network.nodes["n0"].notified == [{"CG"}, {"CG"}]
    assert network.nodes["n0"].gossip.merged.subscription("CG", "T1") is None
    assert network.nodes["n0"].gossip.merged.subscription("CG", "T2") is not None


@pytest.mark.parametrize("node_id", ["n0", "n1"])
def test_a_subscription_that_changes_in_its_type_only_notifies_the_group(network: Network, node_id: str) -> None:
    channel = network.nodes[node_id].heartbeat("c1")
    network.settle()
    network.nodes[node_id].heartbeat("c1", channel=channel, expression_type="SQL92")
    network.settle()
    assert network.nodes["n0"].notified == [{"CG"}, {"CG"}]


def test_a_closed_connection_takes_its_clients_with_it(network: Network) -> None:
    follower = network.nodes["n1"]
    channel = follower.heartbeat("c1")
    network.settle()
    follower.gossip.local.channel_lost(channel)
    network.settle()
    assert network.nodes["n0"].members() == []
    assert channel.client_ids == set()


class CountedName(str):
    """A group's name that counts how often it is compared."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return str.__eq__(self, other)


def test_what_is_known_of_a_client_is_compared_once_for_each_of_its_groups() -> None:
    groups = 1_000
    consumers = [ConsumerData(CountedName(f"g{number}")) for number in range(groups)]
    clients, channel = LocalClients(lambda _ids, _groups: None), Channel()
    CountedName.compared = 0
    for _ in range(3):
        clients.heartbeat(channel, HeartbeatData("c1", [], consumers), 0, 479, 0.0)
    assert CountedName.compared < 20 * groups


def test_a_client_that_names_a_group_twice_leaves_it_like_any_other(network: Network) -> None:
    local, channel = network.nodes["n0"].gossip.local, Channel()
    twice = HeartbeatData("c1", [ProducerData("PG")] * 2, [ConsumerData("CG")] * 2)
    local.heartbeat(channel, twice, 0, 479, network.env.now())
    assert network.nodes["n0"].members() == ["c1"]
    network.settle(2 * CLIENT_TIMEOUT_S)
    assert network.nodes["n0"].members() == list(local.index.producers("PG")) == []


def test_a_client_that_moved_to_another_connection_survives_the_close_of_the_old_one(network: Network) -> None:
    leader = network.nodes["n0"]
    old = leader.heartbeat("c1")
    leader.heartbeat("c1")
    leader.gossip.local.channel_lost(old)
    assert leader.members() == ["c1"]


def test_a_client_leaves_one_group_at_a_time(network: Network) -> None:
    leader = network.nodes["n0"]
    leader.heartbeat("c1")
    leader.gossip.local.unregister("c1", None, "CG")
    assert leader.members() == []
    assert len(leader.gossip.local) == 1
    leader.gossip.local.unregister("c1", "PG", None)
    assert len(leader.gossip.local) == 0
    leader.gossip.local.unregister("c1", "PG", None)


def test_silent_clients_expire(network: Network) -> None:
    leader = network.nodes["n0"]
    leader.heartbeat("c1")
    network.settle(CLIENT_TIMEOUT_S + 10)
    assert leader.members() == []


def test_a_new_leader_learns_all_clients_and_waits_for_them_before_it_answers(network: Network) -> None:
    network.nodes["n0"].heartbeat("c1")
    network.nodes["n1"].heartbeat("c2")
    network.settle()
    answered: list[list[str]] = []
    new = network.nodes["n2"]
    for node_id, node in network.nodes.items():
        node.group.on_leadership(Leadership(2, "n2", is_leader=node_id == "n2", ready=node_id == "n2"))
    new.gossip.when_complete(lambda: answered.append(new.members()))
    assert answered == []
    network.settle()
    assert answered == [["c1", "c2"]]


def test_a_new_leader_waits_for_all_pieces_of_a_large_table(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [f"c{number:02d}" for number in range(40)]
    for client_id in ids:
        network.nodes["n1"].heartbeat(client_id)
    network.settle()
    monkeypatch.setattr(gossip, "TABLE_BYTES", 1000)
    for node_id, node in network.nodes.items():
        own = node_id == "n2"
        node.group.on_leadership(Leadership(2, "n2", is_leader=own, ready=own))
    leader = network.nodes["n2"]
    seen: list[list[str]] = []
    leader.gossip.when_complete(lambda: seen.append(leader.members()))
    network.settle(1.0)
    assert seen == [ids]


def test_a_new_leader_does_not_wait_for_a_node_that_is_gone(network: Network) -> None:
    network.nodes["n1"].heartbeat("c2")
    network.settle()
    network.down.add("n0")
    network.lead("n2", term=2)
    answered: list[list[str]] = []
    network.nodes["n2"].gossip.when_complete(lambda: answered.append(network.nodes["n2"].members()))
    network.settle(2)
    assert answered == [["c2"]]


def test_the_clients_of_a_node_that_is_gone_are_forgotten(network: Network) -> None:
    network.nodes["n1"].heartbeat("c1")
    network.settle()
    network.down.add("n1")
    network.settle(NODE_TIMEOUT_S + 10)
    assert network.nodes["n0"].members() == []
    assert network.nodes["n0"].notified[-1] == {"CG"}


def test_a_lost_table_is_told_again(network: Network) -> None:
    follower = network.nodes["n1"]
    follower.heartbeat("c1")
    network.down.add("n1")
    network.settle(0.5)
    assert network.nodes["n0"].members() == []
    network.down.clear()
    network.settle(6)
    assert network.nodes["n0"].members() == ["c1"]


def test_a_heartbeat_to_a_follower_counts_before_it_is_answered(network: Network) -> None:
    follower = network.nodes["n1"]
    follower.heartbeat("c1")
    seen: list[list[str]] = []
    follower.gossip.when_told(lambda: seen.append(network.nodes["n0"].members()))
    network.env.run_ready()
    assert seen == [["c1"]]


def test_a_heartbeat_that_comes_while_another_is_told_counts_before_it_is_answered(network: Network) -> None:
    follower = network.nodes["n1"]
    seen: list[list[str]] = []
    for client_id in ("c1", "c2"):
        follower.heartbeat(client_id)
        follower.gossip.when_told(lambda: seen.append(network.nodes["n0"].members()))
    network.env.run_ready()
    assert seen == [["c1"], ["c1", "c2"]]


def test_a_heartbeat_counts_with_the_leader_that_there_is_when_it_is_answered(network: Network) -> None:
    follower = network.nodes["n1"]
    follower.heartbeat("c1")
    seen: list[list[str]] = []
    follower.gossip.when_told(lambda: seen.append(network.nodes["n2"].members()))
    network.lead("n2", term=2)
    assert seen == [["c1"]]


def test_heartbeats_are_answered_when_the_leader_cannot_be_told(network: Network) -> None:
    follower = network.nodes["n1"]
    done: list[str] = []
    for client_id in ("c1", "c2"):
        follower.heartbeat(client_id)
        follower.gossip.when_told(lambda client_id=client_id: done.append(client_id))  # type: ignore[misc]
    network.down.add("n0")
    network.env.run_ready()
    assert done == ["c1", "c2"]


def test_without_a_leader_a_node_notifies_its_own_clients(network: Network) -> None:
    network.lead(None, term=2)
    follower = network.nodes["n1"]
    before = len(follower.notified)
    follower.heartbeat("c1")
    done: list[bool] = []
    follower.gossip.when_told(lambda: done.append(True))
    assert len(follower.notified) == before + 1
    assert done == [True]


def test_the_leader_knows_which_nodes_have_long_polls_waiting(network: Network) -> None:
    follower = network.nodes["n1"]
    follower.holding = True
    follower.gossip.hold_changed()
    network.settle()
    assert network.nodes["n0"].gossip.followers_hold_pulls
    follower.holding = False
    follower.gossip.hold_changed()
    network.settle()
    assert not network.nodes["n0"].gossip.followers_hold_pulls


def test_a_long_poll_that_begins_while_the_leader_is_told_something_else_is_told_next(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = network.nodes["n1"]
    submit = follower.submit

    def submit_slowly(to: str, data: bytes, on_reply: OnReply, timeout_s: float) -> bool:
        network.env.call_later(0.2, lambda: submit(to, data, on_reply, timeout_s))
        return True

    monkeypatch.setattr(follower, "submit", submit_slowly)
    follower.heartbeat("c1")
    network.settle(0.1)
    follower.holding = True
    follower.gossip.hold_changed()
    network.settle(0.6)
    assert network.nodes["n0"].gossip.followers_hold_pulls


def test_the_newest_version_of_a_subscription_counts(network: Network) -> None:
    leader = network.nodes["n0"]
    channel = Channel()
    for version, expression in ((2, "new"), (1, "old")):
        subscription = SubscriptionData("T1", expression, sub_version=version)
        data = HeartbeatData("c1", [], [ConsumerData("CG", subscription_data_set=[subscription])])
        leader.gossip.local.heartbeat(channel, data, 0, 479, 0.0)
    found = leader.gossip.merged.subscription("CG", "T1")
    assert found is not None
    assert found.sub_string == "new"


def test_the_leader_hears_which_commands_the_other_nodes_understand(network: Network) -> None:
    assert network.nodes["n0"].learned == {"n1": COMMANDS.kinds, "n2": COMMANDS.kinds}


def test_a_tick_that_raises_is_not_the_last_one(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    network.nodes["n1"].heartbeat("c1")
    local = network.nodes["n1"].gossip.local

    def fail(now: float) -> None:
        monkeypatch.undo()
        raise KeyError("nobody expected that")

    monkeypatch.setattr(local, "expire", fail)
    with pytest.raises(KeyError):
        network.settle(gossip.PERIOD_S + 1)
    assert "c1" in local.index.rows
    network.settle(CLIENT_TIMEOUT_S + 2 * gossip.PERIOD_S)
    assert "c1" not in local.index.rows
