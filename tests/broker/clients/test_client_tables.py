"""Tables of connected clients: each node's own, and the leader's merged view of all."""

from __future__ import annotations

import pytest

from dledger.statemachine import Leadership
from dledger_broker.clients import gossip, tables
from dledger_broker.clients.gossip import NODE_TIMEOUT_S
from dledger_broker.clients.tables import CLIENT_TIMEOUT_S, LocalClients
from dledger_broker.features import COMMANDS
from dledger_remoting.errors import SystemBusy
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from tests.broker.clients.gossiping import Channel, Network, Node, OnReply


@pytest.fixture
def network() -> Network[Node]:
    """Return the leader n0 and two followers."""
    return Network(Node, "n0", "n1", "n2")


def test_every_node_learns_the_leaders_address_and_the_leader_their_command_kinds(network: Network[Node]) -> None:
    for node in network.nodes.values():
        assert node.group.leader_address == "10.0.0.1:0"
    assert network.leader.learned == {"n1": COMMANDS.kinds, "n2": COMMANDS.kinds}


def test_a_large_client_table_reaches_the_leader_in_parts(
    network: Network[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gossip, "TABLE_BYTES", 1000)
    ids = [f"c{number:02d}" for number in range(40)]
    network.lead(None)
    for client_id in ids:
        network.follower.heartbeat(client_id)
    network.lead("n0", term=2)
    network.settle(1.0)
    assert network.leader.members() == ids
    assert network.largest < 1500


@pytest.mark.parametrize("order", [("n0", "n1", "n2"), ("n2", "n1", "n0")])
def test_a_client_that_heartbeats_to_all_nodes_counts_once_and_notifies_once(
    network: Network[Node], order: tuple[str, ...]
) -> None:
    channels = {}
    for node_id in order:
        channels[node_id] = network.nodes[node_id].heartbeat("c1")
        network.settle()
    assert network.leader.members() == ["c1"]
    assert [node.notified for node in network.nodes.values()] == [[{"CG"}]] * 3
    for node_id in order:
        network.nodes[node_id].gossip.local.channel_lost(channels[node_id])
        network.settle()
    assert network.leader.members() == []
    assert [node.notified for node in network.nodes.values()] == [[{"CG"}, {"CG"}]] * 3


def test_each_member_is_notified_by_exactly_one_node(network: Network[Node]) -> None:
    """A C++ client on two cores hangs if it is told twice at once: both threads wait for a pull that neither reads."""
    leader, *followers = network.nodes.values()
    for node_id, *client_ids in (
        ("n0", "everywhere"), ("n1", "everywhere", "at-followers"), ("n2", "everywhere", "at-followers", "at-one")
    ):  # fmt: skip
        for client_id in client_ids:
            network.nodes[node_id].heartbeat(client_id)
    network.settle()
    for node in network.nodes.values():
        node.told.clear()
    leaving = network.follower.joined_by("leaves")
    told = [*followers[0].told, *followers[1].told]
    assert (leader.told, sorted(told)) == (["everywhere"], ["at-followers", "at-one", "leaves"])
    network.follower.gossip.local.channel_lost(leaving)
    network.settle()
    assert leader.told == ["everywhere"] * 2
    assert sorted(followers[0].told + followers[1].told) == ["at-followers"] * 2 + ["at-one"] * 2 + ["leaves"]


@pytest.mark.parametrize("node_id", ["n0", "n1"])
def test_only_a_changed_subscription_notifies_the_group(network: Network[Node], node_id: str) -> None:
    node, leader = network.nodes[node_id], network.leader
    channel = node.joined_by("c1")
    node.heartbeat("c1", channel=channel)
    network.settle()
    assert [len(each.notified) for each in network.nodes.values()] == [1] * 3
    node.heartbeat("c1", channel=channel, expression_type="SQL92")
    network.settle()
    assert leader.notified == [{"CG"}] * 2
    node.heartbeat("c1", topic="T2", channel=channel)
    network.settle()
    assert leader.notified == [{"CG"}] * 3
    assert leader.gossip.merged.subscription("CG", "T1") is None
    assert leader.gossip.merged.subscription("CG", "T2") is not None


def test_a_closed_connection_takes_its_clients_with_it(network: Network[Node]) -> None:
    channel = network.follower.joined_by("c1")
    network.follower.gossip.local.channel_lost(channel)
    network.settle()
    assert network.leader.members() == []
    assert channel.client_ids == set()


def test_a_client_on_a_new_connection_survives_the_close_of_its_old_connection(network: Network[Node]) -> None:
    old = network.leader.heartbeat("c1")
    network.leader.heartbeat("c1")
    network.leader.gossip.local.channel_lost(old)
    assert network.leader.members() == ["c1"]


class CountedName(str):
    """Name of a group, which counts how often it is compared."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return str.__eq__(self, other)


def test_the_cost_of_a_heartbeat_is_linear_in_the_groups_of_its_client() -> None:
    groups = 1_000
    consumers = [ConsumerData(CountedName(f"g{number}")) for number in range(groups)]
    clients, channel = LocalClients(lambda _ids, _groups: None), Channel()
    CountedName.compared = 0
    for _ in range(3):
        clients.heartbeat(channel, HeartbeatData("c1", [], consumers), 0, 479, 0.0)
    assert CountedName.compared < 20 * groups


def test_a_client_that_names_a_group_twice_expires_from_the_group(network: Network[Node]) -> None:
    local, channel = network.leader.gossip.local, Channel()
    twice = HeartbeatData("c1", [ProducerData("PG")] * 2, [ConsumerData("CG")] * 2)
    local.heartbeat(channel, twice, 0, 479, network.env.now())
    assert network.leader.members() == ["c1"]
    network.settle(2 * CLIENT_TIMEOUT_S)
    assert network.leader.members() == list(local.index.producers("PG")) == []


def test_a_client_unregisters_one_group_at_a_time(network: Network[Node]) -> None:
    network.leader.heartbeat("c1")
    network.leader.gossip.local.unregister("c1", None, "CG")
    assert network.leader.members() == []
    assert len(network.leader.gossip.local) == 1
    network.leader.gossip.local.unregister("c1", "PG", None)
    assert len(network.leader.gossip.local) == 0
    network.leader.gossip.local.unregister("c1", "PG", None)


@pytest.mark.parametrize("gone", [False, True])
def test_a_new_leader_answers_only_after_all_nodes_have_told_their_clients(network: Network[Node], gone: bool) -> None:
    """It does not wait for a node that is gone."""
    network.leader.heartbeat("c1")
    network.follower.joined_by("c2")
    if gone:
        network.down.add("n0")
    new, answered = network.nodes["n2"], list[list[str]]()
    for node in network.nodes.values():
        node.group.on_leadership(Leadership(2, "n2", is_leader=node is new, ready=node is new))
    new.gossip.after_all_tables(lambda: answered.append(new.members()))
    assert answered == []
    network.settle(2 if gone else 0.1)
    assert answered == [["c2"] if gone else ["c1", "c2"]]


def test_a_new_leader_waits_for_all_pieces_of_a_large_table(
    network: Network[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"c{number:02d}" for number in range(40)]
    for client_id in ids:
        network.follower.heartbeat(client_id)
    network.settle()
    monkeypatch.setattr(gossip, "TABLE_BYTES", 1000)
    new, seen = network.nodes["n2"], list[list[str]]()
    for node in network.nodes.values():
        node.group.on_leadership(Leadership(2, "n2", is_leader=node is new, ready=node is new))
    new.gossip.after_all_tables(lambda: seen.append(new.members()))
    network.settle(1.0)
    assert seen == [ids]


def test_a_lost_client_table_is_sent_again_and_the_clients_of_a_node_that_is_gone_are_forgotten(
    network: Network[Node],
) -> None:
    network.follower.heartbeat("c1")
    network.down.add("n1")
    network.settle(0.5)
    assert network.leader.members() == []
    network.down.clear()
    network.settle(6)
    assert network.leader.members() == ["c1"]
    network.down.add("n1")
    network.settle(NODE_TIMEOUT_S + 10)
    assert network.leader.members() == []
    assert network.leader.notified[-1] == {"CG"}


def test_each_heartbeat_is_answered_after_the_leader_knows_its_client(network: Network[Node]) -> None:
    seen: list[list[str]] = []

    def heartbeat(client_id: str, leader: Node) -> None:
        network.follower.heartbeat(client_id)
        network.follower.gossip.after_exchange(lambda: seen.append(leader.members()))

    for client_id in ("c1", "c2"):
        heartbeat(client_id, network.leader)
    network.env.run_ready()
    assert seen == [["c1"], ["c1", "c2"]]
    heartbeat("c3", network.nodes["n2"])
    network.lead("n2", term=2)
    assert seen[2:] == [["c1", "c2", "c3"]], "it waits for the next leader"


def test_heartbeats_are_answered_when_the_leader_cannot_be_told(network: Network[Node]) -> None:
    done: list[str] = []
    for client_id in ("c1", "c2"):
        network.follower.heartbeat(client_id)
        network.follower.gossip.after_exchange(lambda client_id=client_id: done.append(client_id))  # type: ignore[misc]
    network.down.add("n0")
    network.env.run_ready()
    assert done == ["c1", "c2"]
    network.lead(None, term=2)
    before = len(network.follower.notified)
    network.follower.heartbeat("c3")
    network.follower.gossip.after_exchange(lambda: done.append("c3"))
    assert len(network.follower.notified) == before + 1, "without a leader a node notifies its own clients"
    assert done[2:] == ["c3"]


def test_the_leader_knows_which_nodes_have_long_polls_waiting(network: Network[Node]) -> None:
    network.follower.holding = True
    network.follower.gossip.hold_changed()
    network.settle()
    assert network.leader.gossip.followers_hold_pulls
    network.follower.holding = False
    network.follower.gossip.hold_changed()
    network.settle()
    assert not network.leader.gossip.followers_hold_pulls


def test_a_long_poll_that_begins_during_an_update_is_reported_by_the_next_update(
    network: Network[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = network.follower.submit

    def submit_slowly(to: str, data: bytes, on_reply: OnReply, timeout_s: float) -> bool:
        network.env.call_later(0.2, lambda: submit(to, data, on_reply, timeout_s))
        return True

    monkeypatch.setattr(network.follower, "submit", submit_slowly)
    network.follower.heartbeat("c1")
    network.settle(0.1)
    network.follower.holding = True
    network.follower.gossip.hold_changed()
    network.settle(0.6)
    assert network.leader.gossip.followers_hold_pulls


def test_the_newest_version_of_a_subscription_counts(network: Network[Node]) -> None:
    channel = Channel()
    for version, expression in ((2, "new"), (1, "old")):
        subscription = SubscriptionData("T1", expression, sub_version=version)
        data = HeartbeatData("c1", [], [ConsumerData("CG", subscription_data_set=[subscription])])
        network.leader.gossip.local.heartbeat(channel, data, 0, 479, 0.0)
    found = network.leader.gossip.merged.subscription("CG", "T1")
    assert found is not None
    assert found.sub_string == "new"


def test_the_ticks_of_gossip_go_on_after_an_exception(network: Network[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    network.follower.heartbeat("c1")
    local = network.follower.gossip.local

    def fail(now: float) -> None:
        monkeypatch.undo()
        raise KeyError("nobody expected that")

    monkeypatch.setattr(local, "expire", fail)
    with pytest.raises(KeyError):
        network.settle(gossip.PERIOD_S + 1)
    assert "c1" in local.index.rows
    network.settle(CLIENT_TIMEOUT_S + 2 * gossip.PERIOD_S)
    assert "c1" not in local.index.rows


def test_client_tables_have_a_memory_limit_and_free_what_leaving_clients_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_CLIENT_BYTES", 5_000)
    clients, channel = LocalClients(lambda ids, groups: None), Channel()

    def heartbeat(client_id: str, topics: int) -> None:
        subscriptions = [SubscriptionData(f"t{number}") for number in range(topics)]
        consumers = [ConsumerData("g", subscription_data_set=subscriptions)]
        clients.heartbeat(channel, HeartbeatData(client_id, consumer_data_set=consumers), 0, 479, 0.0)

    heartbeat("a", 2)
    heartbeat("b", 2)
    for client_id, topics in (("c", 3), ("a", 9)):
        with pytest.raises(SystemBusy, match="subscribe to fewer"):
            heartbeat(client_id, topics)
    heartbeat("a", 1)
    clients.unregister("b", None, "g")
    heartbeat("c", 3)
    clients.channel_lost(channel)
    assert (len(clients), clients.held_bytes) == (0, 0)
