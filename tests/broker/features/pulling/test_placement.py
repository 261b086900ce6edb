"""Which node of a group a reader is sent to, and when it is not sent to the leader's id."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from served_broker import MakeBroker, ServedBroker

from dledger.log import Log
from dledger.net.errors import PeerError, PeerGoneError
from dledger.replica.status import PeerStatus
from dledger.statemachine import Leadership
from dledger.types import ReplicaId
from dledger_broker.clients.gossip import Gossip, Hello, Placed, Table, _decode, _encode
from dledger_broker.clients.tables import ClientRow
from dledger_broker.config import BrokerConfig
from dledger_broker.features.pulling.placement import CHANGE_S, TOLD_S, Placement
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.testing import FakeEnvironment
from dledger_remoting.route import MASTER_ID

NAMES = ("n0", "n1", "n2")
IDS = {"n0": 1, "n1": 2, "n2": 3}
LIMIT = 1_000
BEHIND = LIMIT + 1


class PlacingNode:
    """One node's gossip and placement; it is its own channel to the others, and its own log."""

    def __init__(self, world: World, name: str, mode: str) -> None:
        self.world, self.name = world, name
        self.group = Group(name, f"10.0.0.1:{name[1:]}")
        peers = [other for other in NAMES if other != name]
        self.gossip = Gossip(world.env, self.group, peers, (), lambda *_: None)
        self.gossip.attach_members(self)
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

    def status(self) -> SimpleNamespace:
        now = self.world.env.now()
        return SimpleNamespace(
            peers=[
                PeerStatus(
                    name,
                    name not in self.world.learners,
                    0,
                    self.world.lag.get(name, 0),
                    int((now - self.world.down[name]) * 1000) if name in self.world.down else 20,
                    "stream",
                    0,
                    0,
                )
                for name in NAMES
                if name != self.name
            ]
        )

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
        """For the queues 0 to 5 of a topic."""
        return [self.placement.next_id("T1", queue_id, behind_bytes) for queue_id in range(6)]


class World:
    """Three nodes; n0 has led for a while."""

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


@pytest.fixture
def lagging() -> World:
    return World("lagging")


def test_queues_are_spread_over_leader_and_followers(spread: World) -> None:
    ids = spread.nodes["n0"].next_ids()
    assert sorted(ids) == [0, 0, 2, 2, 3, 3]
    assert ids[:3] == ids[3:]


def test_a_follower_keeps_its_own_queues_and_sends_others_to_the_leader(spread: World) -> None:
    homes = spread.nodes["n0"].next_ids()
    for name in ("n1", "n2"):
        assert spread.nodes[name].next_ids() == [home if home == IDS[name] else MASTER_ID for home in homes]


def test_nobody_reads_from_followers_if_that_is_off() -> None:
    world = World("off")
    assert set(world.nodes["n0"].next_ids(BEHIND)) == {MASTER_ID}
    assert set(world.nodes["n1"].next_ids(BEHIND)) == {MASTER_ID}


def test_only_who_lags_is_sent_to_followers(lagging: World) -> None:
    leader = lagging.nodes["n0"]
    assert set(leader.next_ids(LIMIT)) == {MASTER_ID}
    assert set(leader.next_ids(None)) == {MASTER_ID}
    assert set(leader.next_ids(BEHIND)) == {2, 3}


def test_who_lags_stays_at_a_follower_until_it_has_come_near(lagging: World) -> None:
    follower = lagging.nodes["n1"]
    assert set(follower.next_ids(BEHIND)) == {MASTER_ID, 2}
    assert follower.next_ids(LIMIT // 2 + 1) == follower.next_ids(None) == follower.next_ids(BEHIND)
    assert set(follower.next_ids(LIMIT // 2)) == {MASTER_ID}


@pytest.mark.parametrize("what", ["is down", "lags", "votes no more"])
def test_a_follower_that_cannot_serve_is_no_home(spread: World, what: str) -> None:
    if what == "is down":
        spread.kill("n1")
        spread.env.advance(3)
    elif what == "lags":
        spread.lag["n1"] = 10_000
    else:
        spread.learners.add("n1")
    spread.env.advance(1)
    assert set(spread.nodes["n0"].next_ids()) == {MASTER_ID, 3}


def test_a_lagging_follower_sends_its_readers_back_as_soon_as_the_leader_says_so(spread: World) -> None:
    spread.lag["n1"] = 10_000
    spread.env.advance(6)
    assert set(spread.nodes["n1"].next_ids()) == {MASTER_ID}


def test_a_node_that_leaves_is_no_home(spread: World) -> None:
    spread.nodes["n1"].group.is_leaving = True
    spread.env.advance(6)
    assert set(spread.nodes["n0"].next_ids()) == {MASTER_ID, 3}


def test_a_new_leader_sends_nobody_to_id_0_which_is_the_dead_one_by_the_clients_routes(spread: World) -> None:
    """1. The leader dies. 2. By the routes of clients it is still id 0. 3. The new one says: pull from 0."""
    spread.kill("n0")
    spread.env.advance(1)
    spread.lead("n1", 2)
    assert set(spread.nodes["n1"].next_ids()) == {3}
    assert set(spread.nodes["n2"].next_ids()) == {3}
    spread.env.advance(CHANGE_S)
    assert set(spread.nodes["n1"].next_ids()) == {MASTER_ID, 3}
    spread.env.advance(6)
    assert set(spread.nodes["n2"].next_ids()) == {MASTER_ID, 3}


def test_a_new_leader_keeps_readers_until_it_knows_who_else_serves_them(spread: World) -> None:
    """1. It leads, and has heard no table yet. 2. A pull that was held is answered: not with 0, the dead node."""
    spread.kill("n0")
    spread.kill("n2")
    spread.lead("n1", 2)
    assert set(spread.nodes["n1"].next_ids()) == {2}
    spread.env.advance(CHANGE_S)
    assert set(spread.nodes["n1"].next_ids()) == {MASTER_ID}


def test_who_is_near_the_end_is_kept_by_a_new_leader_as_well(lagging: World) -> None:
    lagging.kill("n0")
    lagging.lead("n1", 2)
    assert set(lagging.nodes["n1"].next_ids(0)) == {2}
    lagging.env.advance(CHANGE_S)
    assert set(lagging.nodes["n1"].next_ids(0)) == {MASTER_ID}


def test_a_follower_that_leaves_keeps_nobody_though_the_leader_has_changed(spread: World) -> None:
    spread.lead("n1", 2)
    assert set(spread.nodes["n2"].next_ids()) == {3}
    spread.nodes["n2"].group.is_leaving = True
    assert set(spread.nodes["n2"].next_ids()) == {MASTER_ID}


def test_a_node_that_has_to_refuse_all_is_no_home(spread: World) -> None:
    spread.nodes["n1"].obstacle = "there are accounts, and this node has no key file"
    spread.env.advance(6)
    assert set(spread.nodes["n0"].next_ids()) == {MASTER_ID, 3}


def test_followers_without_a_leader_keep_their_readers_for_a_while(lagging: World) -> None:
    lagging.kill("n0")
    lagging.lead(None, 2)
    assert set(lagging.nodes["n1"].next_ids(0)) == {2}
    lagging.env.advance(CHANGE_S)
    assert set(lagging.nodes["n1"].next_ids(BEHIND)) == {MASTER_ID}


def test_what_a_follower_was_told_long_ago_counts_no_more(spread: World) -> None:
    """A node that is cut off does not know of it at once, and must not keep readers from what is stored meanwhile."""
    spread.kill("n1")
    spread.env.advance(TOLD_S + 1)
    assert set(spread.nodes["n1"].next_ids()) == {MASTER_ID}


def test_a_follower_keeps_a_reader_whose_pull_the_leader_does_not_answer(spread: World) -> None:
    assert [spread.nodes[name].placement.id_without_leader() for name in ("n1", "n2")] == [IDS["n1"], IDS["n2"]]
    spread.nodes["n1"].obstacle = "an upgrade is under way"
    assert spread.nodes["n1"].placement.id_without_leader() == MASTER_ID
    assert World("off").nodes["n1"].placement.id_without_leader() == MASTER_ID


def test_a_late_answer_of_who_led_before_places_nobody(spread: World) -> None:
    spread.lead("n1", 2)
    spread.env.advance(CHANGE_S + 6)
    follower = spread.nodes["n2"]
    homes = follower.next_ids()
    follower.gossip._learn("n0", _encode(Placed("10.0.0.1:0", (MASTER_ID,))))
    assert follower.next_ids() == homes
    assert 3 in homes


def test_a_node_that_does_not_serve_readers_is_answered_as_ever(spread: World) -> None:
    """Older nodes know no other answer."""
    answers: list[bytes | PeerError] = []
    table = Table("10.0.0.1:1", whole=True, rows=(), removed=(), holds_pulls=False)
    spread.nodes["n0"].gossip.on_request(ReplicaId("n1", "i"), _encode(table), answers.append)
    assert [_decode(cast(bytes, answer)) for answer in answers] == [Hello("10.0.0.1:0")]


def suggested(broker: ServedBroker, offset: int, subscription: str = "*") -> str:
    return broker.client().pull("T1", offset=offset, subscription=subscription).ext["suggestWhichBrokerId"]


def test_answers_carry_what_the_leader_has_chosen(make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
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
