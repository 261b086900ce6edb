"""Order of callbacks when a broker's leadership, topics, groups or members change, and of its start and stop.

Requests that waited for a change are handled in the middle of these calls, so their order decides what they see.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import pytest_asyncio
from broker_in_process import node_config, until

from dledger.node import Node
from dledger.statemachine import Leadership
from dledger.types import ReplicaId
from dledger_broker.clients.gossip import Gossip, Table, _encode
from dledger_broker.clients.tables import ClientRow
from dledger_broker.features import FEATURES
from dledger_broker.features.client_membership.members import GroupMembers
from dledger_broker.features.offsets.buffer import OffsetBuffer
from dledger_broker.features.pulling.longpoll import LongPolls
from dledger_broker.features.pulling.requests import PullRequests
from dledger_broker.features.runtime.description import RuntimeInfo
from dledger_broker.features.sending.send import SendRequests
from dledger_broker.frontend.dispatch import Dispatcher
from dledger_broker.frontend.forwarding import Forwarder
from dledger_broker.frontend.listener import Listener
from dledger_broker.frontend.registration import Registrar
from dledger_broker.kernel.events import EVENTS, EventListener, Events
from dledger_broker.kernel.jobs import LeaderJobs
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.members import Features
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.told_kinds import ReportedKinds
from dledger_broker.kernel.topics import TopicTable
from dledger_broker.node import Broker
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.records import Message
from dledger_broker.views.checkpointer import Checkpointer
from dledger_broker.views.consumequeue import ConsumeQueues
from dledger_broker.views.keysearch import KeySearch
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig
from tests.broker.clients.gossiping import Channel
from tests.broker.telling import tell, tell_first

TOLD = {
    "unready": [
        "NamesMade",
        "GroupClock",
        "OffsetRequests",
        "PopRequests",
        "LeaseRequests",
        "Resets",
    ],
    "new_leadership": ["SendRequests", "GroupSettings", "Adoption", "BrokerService"],
    "leader_changed": [
        "ClientRequests",
        "LockRequests",
        "QuotaRequests",
        "SendRequests",
        "PullRequests",
        "PopRequests",
        "Registrar",
        "Announcements",
    ],
    "name_servers_changed": ["Announcements"],
    "resume_waiting": ["Forwarder"],
    "prepare_handover": ["OffsetRequests", "PopRequests"],
    "topics_changed": ["ClientRequests", "SendRequests", "PullRequests", "PopRequests", "Registrar"],
    "groups_changed": ["ClientRequests", "SendRequests", "PopRequests", "Adoption"],
    "members_changed": ["Activation", "TlsFact", "SendRequests", "GroupSettings", "Adoption"],
    "prepare_deletion": ["OffsetRequests", "RetryRequests", "PopRequests"],
    "refused": ["SendRequests"],
    "messages_arrived": ["PullRequests", "PopRequests", "BrokerService"],
    "group_reset": ["RetryRequests"],
    "client_beat": ["LeaseRequests"],
    "client_left": ["LockRequests", "LeaseRequests"],
    "name_made": ["QuotaRequests"],
    "sends_go_on": ["SendRequests"],
}
"""Classes of the listeners that are told of each event, in their order."""
CHANGE = ("new_leadership", "leader_changed", "resume_waiting")
TRIMMED = ["BrokerMachine._trimmed"]
HANDOVER = ["BrokerMachine.hand_over"]
ALL_OF_LEADERSHIP = [f"{owner}.{event}" for event in CHANGE for owner in TOLD[event]]
"""Calls at a change of leadership. The broker's service passes the change on to the view of the group."""

STARTED = [
    (Listener, "bind"),
    (Node, "start"),
    (Forwarder, "attach"),
    (Gossip, "start"),
    (Node, "on_handover"),
    (BrokerMachine, "start"),
    (Checkpointer, "remove_leftovers"),
    (RuntimeInfo, "start"),
    (LeaderJobs, "open"),
    (Listener, "serve"),
    (Registrar, "start"),
]
DRAINED = [(Node, "transfer_leadership"), (Registrar, "leave"), (PullRequests, "release")]
STOPPED = [
    (Registrar, "stop"),
    (Gossip, "stop"),
    (LeaderJobs, "close"),
    (RuntimeInfo, "stop"),
    (PullRequests, "release"),
    (Forwarder, "close"),
    (Dispatcher, "close"),
    (SendRequests, "close"),
    (OffsetBuffer, "flush"),
    (Listener, "stop_reading"),
    (OffsetBuffer, "flush"),
    (Listener, "close"),
    (BrokerMachine, "close"),
    (Forwarder, "refuse"),
    (OffsetBuffer, "flush"),
    (Node, "stop"),
]
ME = "broker-a-n0"
OTHER = ReplicaId("broker-a-n1", "1" * 32)
CONSUMER = ConsumerData("CG")


def name_of(callback: Callable[..., object]) -> str:
    """Return the class and method of a callback."""
    while isinstance(callback, partial):
        callback = callback.func
    owner = getattr(callback, "__self__", None)
    qualified = callback.__qualname__.replace("<locals>.", "")
    return qualified if owner is None else f"{type(owner).__name__}.{callback.__name__}"


def names_of(callbacks: Iterable[Callable[..., object]]) -> list[str]:
    return [name_of(callback) for callback in callbacks]


@contextmanager
def traced(*methods: tuple[type, str], calls: bool = True) -> Iterator[list[str]]:
    """Record calls of these methods. Without `calls`, the methods do nothing else."""
    trace: list[str] = []

    def tracing(owner: type, name: str) -> Callable[..., object]:
        original = vars(owner)[name]

        def method(*arguments: object, **named: object) -> object:
            trace.append(f"{owner.__name__}.{name}")
            return original(*arguments, **named) if calls else None

        return method

    with ExitStack() as stack:
        for owner, name in dict.fromkeys(methods):
            stack.enter_context(mock.patch.object(owner, name, tracing(owner, name)))
        yield trace


def record_calls(events: Events, names: Iterable[str], trace: list[str]) -> None:
    """Replace each call at these events by a function that only notes it, except calls that pass the change on."""

    def noting(callback: Callable[..., object]) -> Callable[..., object]:
        def note(*arguments: object) -> None:
            trace.append(name_of(callback))
            if name_of(callback) == "BrokerService.new_leadership":
                callback(*arguments)

        return note

    for name in names:
        setattr(events, name, tuple(map(noting, getattr(events, name))))


async def lead(broker: Broker) -> None:
    await until(lambda: broker.group.ready)


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """Provide a started node with everything that it has."""
    started = Broker(node_config(tmp_path), bootstrap=True)
    await started.start()
    try:
        await lead(started)
        yield started
    finally:
        await started.stop()


def test_listeners_are_told_of_each_event_in_this_order(broker: Broker) -> None:
    machine, replica = broker.machine, broker.node.replica
    assert broker.group.events is machine.events
    found = {event: names_of(getattr(machine.events, event)) for event in EVENTS}
    assert found == {event: [f"{owner}.{event}" for owner in owners] for event, owners in TOLD.items()}
    assert names_of(replica.on_trimmed) == TRIMMED
    assert names_of(replica.leading.on_handover) == HANDOVER


def test_parts_are_told_in_the_order_of_the_features(broker: Broker) -> None:
    parts = list(broker.service.parts)
    assert len(parts) == len(FEATURES)
    for event in EVENTS:
        told = [call.__self__ for call in getattr(broker.machine.events, event)]
        places = [parts.index(listener) for listener in told if isinstance(listener, Part)]
        assert places == sorted(places), event


def test_a_listener_is_told_only_of_events_that_it_overrides() -> None:
    events, told = Events(), list[str]()

    class Hearing(EventListener):
        def topics_changed(self) -> None:
            told.append("topics")

    events.add(EventListener(), Hearing(), Hearing())
    assert {event for event in EVENTS if getattr(events, event)} == {"topics_changed"}
    for tell_of_topics in events.topics_changed:
        tell_of_topics()
    assert told == ["topics", "topics"]


def test_hooks_of_one_callback_are_these(broker: Broker) -> None:
    gossip, registrar = broker.service.gossip, broker.registrar
    assert name_of(gossip.local._changed) == "Gossip._local_changed"
    assert isinstance(gossip._members, GroupMembers)
    assert isinstance(gossip._held_pulls, LongPolls)
    assert name_of(gossip._on_kinds_learned) == "BrokerMachine.learn_kinds"
    assert broker.service.announcements._name_servers is registrar


def test_leadership_is_told_in_this_order(broker: Broker) -> None:
    machine, group, before = broker.machine, broker.group, broker.machine.leadership
    machine.leadership = Leadership(5, None, is_leader=False, ready=False)
    jobs = ((LeaderJobs, "stop"), (LeaderJobs, "start"))
    own = (*jobs, (TopicTable, "reset_staged"), (OffsetBuffer, "discard"), (ReportedKinds, "record_all"))
    with traced(*own, calls=False) as trace:
        record_calls(machine.events, CHANGE, trace)

        def told(term: int, leader: str, *, ready: bool) -> list[str]:
            trace.clear()
            machine.on_leadership(Leadership(term, leader, is_leader=leader == ME, ready=ready))
            return list(trace)

        gained = told(6, ME, ready=False)
        ready = told(6, ME, ready=True)
        lost = told(7, OTHER.node_id, ready=False)
        trace.clear()
        group.learn_address(OTHER.node_id, "127.0.0.1:1")
        found = list(trace)
    machine.leadership = before
    assert gained == ["LeaderJobs.stop", "OffsetBuffer.discard", *ALL_OF_LEADERSHIP]
    assert ready == [
        "LeaderJobs.stop",
        "TopicTable.reset_staged",
        "ReportedKinds.record_all",
        *ALL_OF_LEADERSHIP,
        "LeaderJobs.start",
    ]
    assert lost == ["LeaderJobs.stop", "TopicTable.reset_staged", "OffsetBuffer.discard", *ALL_OF_LEADERSHIP]
    assert found == [call for call in ALL_OF_LEADERSHIP if not call.endswith(".new_leadership")]


def others(trace: list[str]) -> SimpleNamespace:
    """Return a stand-in for the channel to the other nodes, which only notes to whom something is told."""
    return SimpleNamespace(submit=lambda to, *_: trace.append(f"tell {to}") is None)


@pytest.fixture
def members(broker: Broker) -> tuple[Gossip, list[str]]:
    """Return a leader's part in the gossip, and the list of its calls. Nobody else is told of them."""
    gossip, trace = broker.service.gossip, list[str]()
    gossip._on_kinds_learned = lambda *_: trace.append("BrokerMachine.learn_kinds")
    gossip._members = SimpleNamespace(
        notify=lambda *_: trace.append("GroupMembers.notify"),
        ensure_all=lambda *_: trace.append("GroupMembers.ensure_all"),
    )
    gossip._channel = others(trace)
    gossip._peers = (OTHER.node_id, "broker-a-n2")
    return gossip, trace


MEMBERS_CHANGED = ["GroupMembers.ensure_all", "GroupMembers.notify", "tell broker-a-n1", "tell broker-a-n2"]
"""Calls for a leader's own client. For a client of another node, the leader first learns what that node understands."""


def test_a_new_client_of_the_leader_is_announced_in_this_order(members: tuple[Gossip, list[str]]) -> None:
    gossip, trace = members
    gossip.local.heartbeat(Channel(), HeartbeatData("c1", [], [CONSUMER]), 0, 0, 0.0)
    assert trace == MEMBERS_CHANGED


def test_a_new_client_of_another_node_is_announced_in_this_order(members: tuple[Gossip, list[str]]) -> None:
    gossip, trace = members
    row = ClientRow("c2", "127.0.0.1:40001", 0, 0, (), (CONSUMER,))
    table = Table("127.0.0.1:1", whole=True, rows=(row,), removed=(), holds_pulls=False)
    gossip.on_request(OTHER, _encode(table), lambda _: trace.append("reply"))
    assert trace == ["BrokerMachine.learn_kinds", *MEMBERS_CHANGED, "reply"]


@pytest.fixture
def memory() -> tuple[BrokerInMemory, list[str]]:
    """Return a machine on its own, and the list of its calls."""
    memory, trace = BrokerInMemory(), list[str]()
    memory.create_topic("T")
    machine = memory.machine
    tell(machine.events, "topics_changed", lambda: trace.append("topics"))
    tell(machine.events, "groups_changed", lambda: trace.append("groups"))
    tell(machine.events, "members_changed", lambda: trace.append("features"))
    return memory, trace


def test_changes_of_one_entry_are_told_in_this_order(memory: tuple[BrokerInMemory, list[str]]) -> None:
    broker, trace = memory
    machine = broker.machine
    machine.stage_command(Features("n9", (1, 2)), lambda _: trace.append("features are answered"))
    broker.groups.put_group(SubscriptionGroupConfig("CG"), lambda _: trace.append("group is answered"))
    machine.proposals.put_topic(TopicConfig("U"), lambda _: trace.append("topic is answered"))
    with traced((Checkpointer, "maybe_start")) as checkpointed:
        tell(machine.events, "messages_arrived", lambda _: trace.extend(["arrival", *checkpointed]))
        broker.send("T", 0, Message(b"m"))
    told = ["topics", "groups", "features"]
    answered = ["features are answered", "group is answered", "topic is answered"]
    assert [*trace, *checkpointed] == [*told, *answered, "arrival", "Checkpointer.maybe_start"]


def test_an_installed_snapshot_is_told_in_this_order(memory: tuple[BrokerInMemory, list[str]]) -> None:
    broker, trace = memory
    broker.node.snapshot()
    trace.clear()
    with traced((KeySearch, "wipe"), (ConsumeQueues, "wipe")) as wiped:
        tell_first(broker.machine.events, "topics_changed", lambda: trace.extend(wiped))
        broker.node.restore()
    assert trace == ["KeySearch.wipe", "ConsumeQueues.wipe", "topics", "groups"]


async def test_a_broker_starts_drains_and_stops_in_this_order(tmp_path: Path) -> None:
    broker = Broker(node_config(tmp_path, drain_ms=0), bootstrap=True)
    with traced(*STARTED) as started:
        await broker.start()
    await lead(broker)
    broker.service.gossip._peers = (OTHER.node_id,)
    broker.service.gossip._channel = others([])
    with mock.patch.object(Node, "transfer_leadership", mock.AsyncMock(return_value=True)), traced(*DRAINED) as drained:
        await broker.drain()
    with traced(*STOPPED) as stopped:
        await broker.stop()
    assert started == [f"{owner.__name__}.{name}" for owner, name in STARTED]
    assert drained == [f"{owner.__name__}.{name}" for owner, name in DRAINED]
    assert stopped == [f"{owner.__name__}.{name}" for owner, name in STOPPED]
