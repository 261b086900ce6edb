"""Placement of readers: the node of a group that a reader is sent to, and when it is not sent to the leader's id."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from served_broker import MakeBroker, ServedBroker

from dledger.log import Log
from dledger.net.transport import PeerError, PeerGoneError
from dledger.replica.status import PeerStatus
from dledger.statemachine import Leadership
from dledger.types import ReplicaId
from dledger_broker.clients.gossip import Gossip, Hello, Placed, Table, _decode, _encode
from dledger_broker.clients.tables import ClientRow
from dledger_broker.config import BrokerConfig
from dledger_broker.features.pulling.placement import CHANGE_S, TOLD_S, Placement
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.testing import FakeEnvironment
from dledger_remoting.route import MASTER_ID
from tests.broker.telling import tell

NAMES = ("n0", "n1", "n2")
IDS = {"n0": 1, "n1": 2, "n2": 3}
LIMIT = 1_000
BEHIND = LIMIT + 1


class PlacingNode:
    """Gossip and placement of one node, which is its own channel to the others, and its own log."""

    def __init__(self, world: World, name: str, mode: str) -> None:
        self.world, self.name = world, name
        self.group = LeadershipView(name, f"10.0.0.1:{name[1:]}")
        peers = [other for other in NAMES if other != name]
        self.gossip = Gossip(world.env, self.group, peers, (), lambda *_: None)
        self.gossip.attach_members(self)
        tell(self.group.events, "leader_changed", self.gossip.leader_changed)
        config = BrokerConfig(
            broker_group="broker-a",
            node_id=name,
            data_dir=world.directory,
            broker_id_when_follower=IDS[name],
            follower_reads=mode,
            follower_reads_behind_bytes=LIMIT,
        )
        self.obstacle: str | None = None
        live, access = LiveConfig(config), cast(Access, self)
        self.placement = Placement(world.env, cast(Log, self), self.group, live, self.gossip, access)
        tell(self.group.events, "leader_changed", self.placement.leader_changed)

    def status(self) -> SimpleNamespace:
        return SimpleNamespace(peers=[self._peer(name) for name in NAMES if name != self.name])

    def _peer(self, name: str) -> PeerStatus:
        world = self.world
        contact_ms = int((world.env.now() - world.down[name]) * 1000) if name in world.down else 20
        return PeerStatus(name, name not in world.learners, 0, world.lag.get(name, 0), contact_ms, "stream", 0, 0)

    def ensure_all(self, rows: Iterable[ClientRow]) -> None: ...

    def notify(self, groups: set[str], clients: Container[str] | None) -> None: ...

    def submit(self, to: str, data: bytes, on_reply: Callable[[bytes | PeerError], None], timeout_s: float) -> bool:
        if {to, self.name} & self.world.down.keys():
            return False

        def deliver() -> None:
            if {to, self.name} & self.world.down.keys():
                on_reply(PeerGoneError("the link was lost"))
            else:
                self.world.nodes[to].gossip.on_request(ReplicaId(self.name, "i"), data, on_reply)

        self.world.env.call_soon(deliver)
        return True

    def next_ids(self, behind_bytes: int | None = 0) -> list[int]:
        """Return the next ids for the queues 0 to 5 of a topic."""
        return [self.placement.next_id("T1", queue_id, behind_bytes) for queue_id in range(6)]


class World:
    """Group of three nodes, of which n0 has led for a while."""

    def __init__(self, mode: str) -> None:
        self.env = FakeEnvironment()
        self.directory = Path("unused")
        self.down: dict[str, float] = {}
        self.lag: dict[str, int] = {}
        self.learners: set[str] = set()
        self.nodes = {name: PlacingNode(self, name, mode) for name in NAMES}
        for node in self.nodes.values():
            node.gossip.start(node)
        self.lead("n0", 1)
        self.env.advance(CHANGE_S + 1)

    def lead(self, leader: str | None, term: int) -> None:
        for name, node in self.nodes.items():
            if name not in self.down:
                own = name == leader
                node.group.on_leadership(Leadership(term, leader, is_leader=own, ready=own))
        self.env.advance(0.1)

    def kill(self, name: str) -> None:
        self.down[name] = self.env.now()


@pytest.fixture
def spread() -> World:
    return World("spread")


def test_queues_are_spread_over_leader_and_followers_and_each_follower_keeps_its_own(spread: World) -> None:
    homes = spread.nodes["n0"].next_ids()
    assert sorted(homes) == [0, 0, 2, 2, 3, 3]
    assert homes[:3] == homes[3:]
    for name in ("n1", "n2"):
        assert spread.nodes[name].next_ids() == [home if home == IDS[name] else MASTER_ID for home in homes]


@pytest.mark.parametrize(
    ("mode", "behind", "of_leader", "of_follower"),
    [
        ("off", BEHIND, {MASTER_ID}, {MASTER_ID}),
        ("lagging", BEHIND, {2, 3}, {MASTER_ID, 2}),
        ("lagging", LIMIT, {MASTER_ID}, {MASTER_ID, 2}),
        ("lagging", None, {MASTER_ID}, {MASTER_ID, 2}),
        ("lagging", LIMIT // 2 + 1, {MASTER_ID}, {MASTER_ID, 2}),
        ("lagging", LIMIT // 2, {MASTER_ID}, {MASTER_ID}),
    ],
)
def test_only_lagging_readers_are_sent_to_followers_and_stay_until_their_lag_is_half_the_limit(
    mode: str, behind: int | None, of_leader: set[int], of_follower: set[int]
) -> None:
    world = World(mode)
    assert set(world.nodes["n0"].next_ids(behind)) == of_leader
    assert set(world.nodes["n1"].next_ids(behind)) == of_follower
    if of_follower == {MASTER_ID, 2}:
        assert world.nodes["n1"].next_ids(behind) == world.nodes["n1"].next_ids(BEHIND)


@pytest.mark.parametrize(
    ("happens", "within_s"),
    [
        (lambda world, _: world.kill("n1"), 4),
        (lambda world, _: world.lag.update(n1=10_000), 1),
        (lambda world, _: world.learners.add("n1"), 1),
        (lambda _, node: setattr(node.group, "is_leaving", True), 6),
        (lambda _, node: setattr(node, "obstacle", "there are accounts, and this node has no key file"), 6),
    ],
    ids=["is down", "lags", "votes no more", "leaves", "refuses all requests"],
)
def test_no_readers_are_sent_to_a_node_that_cannot_serve_them(
    spread: World, happens: Callable[[World, PlacingNode], None], within_s: float
) -> None:
    happens(spread, spread.nodes["n1"])
    spread.env.advance(within_s)
    assert set(spread.nodes["n0"].next_ids()) == {MASTER_ID, 3}


@pytest.mark.parametrize(
    ("happens", "within_s"),
    [(lambda world: world.lag.update(n1=10_000), 6), (lambda world: world.kill("n1"), TOLD_S + 1)],
    ids=["the leader says that it lags", "it is cut off"],
)
def test_a_follower_that_lags_or_is_cut_off_sends_its_readers_to_the_leader(
    spread: World, happens: Callable[[World], None], within_s: float
) -> None:
    """It must not keep readers from messages that are stored meanwhile, and does not notice at once."""
    happens(spread)
    spread.env.advance(within_s)
    assert set(spread.nodes["n1"].next_ids()) == {MASTER_ID}


def test_a_new_leader_sends_no_reader_to_id_0_while_routes_name_the_dead_leader(spread: World) -> None:
    """In the routes of clients, id 0 is still the dead leader."""
    spread.kill("n0")
    spread.env.advance(1)
    spread.lead("n1", 2)
    assert set(spread.nodes["n1"].next_ids()) == {3}
    assert set(spread.nodes["n2"].next_ids()) == {3}
    spread.env.advance(CHANGE_S)
    assert set(spread.nodes["n1"].next_ids()) == {MASTER_ID, 3}
    spread.env.advance(6)
    assert set(spread.nodes["n2"].next_ids()) == {MASTER_ID, 3}


@pytest.mark.parametrize(
    ("mode", "killed", "leader", "behind_later"),
    [("spread", "n0 n2", "n1", 0), ("lagging", "n0", "n1", 0), ("lagging", "n0", None, BEHIND)],
    ids=["a leader that knows no other readable node", "a leader", "followers without a leader"],
)
def test_readers_stay_for_a_while_after_the_death_of_the_leader(
    mode: str, killed: str, leader: str | None, behind_later: int
) -> None:
    """A pull that was held must not be answered with 0, the dead node."""
    world = World(mode)
    for name in killed.split():
        world.kill(name)
    world.lead(leader, 2)
    assert set(world.nodes["n1"].next_ids()) == {2}
    world.env.advance(CHANGE_S)
    assert set(world.nodes["n1"].next_ids(behind_later)) == {MASTER_ID}


def test_a_leaving_follower_sends_readers_to_the_leader_even_after_a_change_of_leader(spread: World) -> None:
    spread.lead("n1", 2)
    assert set(spread.nodes["n2"].next_ids()) == {3}
    spread.nodes["n2"].group.is_leaving = True
    assert set(spread.nodes["n2"].next_ids()) == {MASTER_ID}


def test_a_follower_keeps_a_reader_whose_pull_the_leader_does_not_answer(spread: World) -> None:
    assert [spread.nodes[name].placement.id_without_leader() for name in ("n1", "n2")] == [IDS["n1"], IDS["n2"]]
    spread.nodes["n1"].obstacle = "an upgrade is under way"
    assert spread.nodes["n1"].placement.id_without_leader() == MASTER_ID
    assert World("off").nodes["n1"].placement.id_without_leader() == MASTER_ID


def test_a_late_placement_of_an_earlier_leader_is_ignored(spread: World) -> None:
    spread.lead("n1", 2)
    spread.env.advance(CHANGE_S + 6)
    follower = spread.nodes["n2"]
    homes = follower.next_ids()
    follower.gossip._learn("n0", _encode(Placed("10.0.0.1:0", (MASTER_ID,))))
    assert follower.next_ids() == homes
    assert 3 in homes


def test_a_node_that_serves_no_readers_gets_the_answer_of_older_versions(spread: World) -> None:
    """Older nodes know no other answer."""
    answers: list[bytes | PeerError] = []
    table = Table("10.0.0.1:1", whole=True, rows=(), removed=(), holds_pulls=False)
    spread.nodes["n0"].gossip.on_request(ReplicaId("n1", "i"), _encode(table), answers.append)
    assert [_decode(cast(bytes, answer)) for answer in answers] == [Hello("10.0.0.1:0")]


def suggested(broker: ServedBroker, offset: int, subscription: str = "*") -> str:
    return broker.client().pull("T1", offset=offset, subscription=subscription).ext["suggestWhichBrokerId"]


def test_answers_carry_the_broker_id_that_the_leader_has_chosen(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker(follower_reads="lagging", follower_reads_behind_bytes=2_000)
    peers = [PeerStatus("n1", True, 0, 0, 20, "stream", 0, 0)]
    status = msgspec.structs.replace(broker.memory.node.status(), peers=peers)
    monkeypatch.setattr(broker.memory.node, "status", lambda: status)
    table = Table("10.0.0.2:1", True, (), (), False, facts={"reads_as": 7})
    broker.service.gossip.on_request(ReplicaId("n1", "i"), _encode(table), lambda _: None)
    broker.memory.env.advance(CHANGE_S)
    broker.service.gossip.on_request(ReplicaId("n1", "i"), _encode(table), lambda _: None)
    client = broker.client()
    for number in range(3):
        client.send_message("T1", bytes(1_500), properties=f"TAGS\x01t{number}\x02")
    assert [suggested(broker, offset) for offset in (0, 1, 2, 3)] == ["7", "7", "0", "0"]
    assert suggested(broker, 0, "none of them") == "0"
