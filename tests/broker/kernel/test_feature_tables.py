"""Table of a feature in the state: what it is told, and that its declaration is all it needs."""

import msgspec
import pytest

from dledger.errors import CorruptionError
from dledger_broker.features import FEATURES
from dledger_broker.features.groups.table import DeleteGroup, PutGroup
from dledger_broker.features.offsets.table import OFFSETS, CommitOffsets
from dledger_broker.features.pins.table import PutPin
from dledger_broker.kernel.feature import Replicated
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState, registry_of
from dledger_broker.kernel.tables import Changes, Table, TableKey
from dledger_broker.kernel.topics import DeleteTopic, PutTopic
from dledger_broker.testing import BrokerInMemory
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig
from tests.broker.kernel.applied_commands import apply


class Count(msgspec.Struct, frozen=True):
    """Command that raises the number."""

    by: int


class CountFrame(msgspec.Struct, frozen=True, tag="count"):
    """Snapshot frame of the number."""

    count: int


class Counter(Table):
    """Table with a number that commands raise, and a list of the deletions that it was told."""

    frames = (CountFrame,)

    def __init__(self) -> None:
        self.count = 0
        self.told: list[object] = []

    @property
    def digest(self) -> int:
        return self.count

    def apply(self, command, entry, changes):
        _ = entry, changes
        self.count += command.by

    def on_topic_deleted(self, topic):
        self.told.append(topic)

    def on_group_deleted(self, group, *, clean_offsets):
        self.told.append((group, clean_offsets))

    def capture_frames(self, now):
        _ = now
        return {"count": (CountFrame(self.count),)} if self.count else {}

    def restore_frame(self, frame, now):
        _ = now
        self.count = frame.count


COUNTER = TableKey("counter", Counter)
TOY = Replicated(name="counter", commands={900: Count}, table=COUNTER)
WITH_TOY = (*FEATURES, TOY)


@pytest.fixture
def state() -> BrokerState:
    """Return an empty state with the counter."""
    return BrokerState(WITH_TOY)


def apply_with_toy(state: BrokerState, *commands: msgspec.Struct) -> Changes:
    return apply(state, *commands, registry=registry_of(WITH_TOY))


def test_a_command_is_applied_by_the_table_of_its_feature_and_counts_in_the_digest(state):
    before = state.digest()
    apply_with_toy(state, Count(3), Count(4))
    assert state.table(COUNTER).count == 7
    assert state.digest() == before + 7


def test_a_feature_table_is_told_of_each_deleted_topic_and_group(state):
    apply_with_toy(state, PutTopic(TopicConfig("orders"), 0), PutGroup(SubscriptionGroupConfig("readers")))
    apply_with_toy(state, CommitOffsets((("readers", "orders", 0, 5), ("readers", "orders", 1, 5))))
    changes = apply_with_toy(state, DeleteTopic("orders"), DeleteTopic("absent"), DeleteGroup("readers"))
    assert state.table(COUNTER).told == ["orders", ("readers", False)]
    assert [topic.config.topic_name for topic in changes.deleted_topics] == ["orders"]
    assert changes.groups_changed
    assert state.table(OFFSETS).pairs() == []


def test_on_state_listeners_are_told_of_a_restored_state():
    broker = BrokerInMemory()
    told: list[BrokerState] = []
    broker.machine.on_state(told.append)
    before = broker.machine.state
    broker.machine.decode(None, [])()
    assert broker.machine.state is not before
    assert told == [before, broker.machine.state]


def kinds_of(stream: bytes) -> list[str]:
    kinds = []
    while stream:
        end = 4 + int.from_bytes(stream[:4], "big")
        kinds.append(msgspec.msgpack.decode(stream[4:end])["type"])
        stream = stream[end:]
    return kinds


def test_frames_of_a_feature_table_follow_older_frames_and_restore_the_table(state):
    apply_with_toy(state, Count(5), PutTopic(TopicConfig("orders"), 0), PutPin("job", 1, 2, 3))
    stream = b"".join(encode_state(state, 0.0))
    assert kinds_of(stream) == ["start", "topics", "features", "pins", "count", "end"]
    restored = decode_state([stream], 0.0, WITH_TOY)
    assert restored.table(COUNTER).count == 5
    assert restored.digest() == state.digest()


def test_older_nodes_can_read_a_snapshot_with_an_empty_feature_table(state):
    apply_with_toy(state, PutTopic(TopicConfig("orders"), 0))
    without = b"".join(encode_state(state, 0.0))
    assert decode_state([without], 0.0, FEATURES).digest() == state.digest()
    apply_with_toy(state, Count(5))
    with pytest.raises(CorruptionError, match="does not decode"):
        decode_state(encode_state(state, 0.0), 0.0, FEATURES)
