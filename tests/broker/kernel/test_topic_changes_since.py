"""What has changed of the topics since a version is known as long as it is remembered."""

import pytest

from dledger_broker.features import FEATURES
from dledger_broker.kernel import topic_changes
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.topics import DeleteTopic
from dledger_remoting.topics import TopicConfig
from tests.broker.kernel.applied_commands import apply


def test_each_change_is_named_once_and_only_those_after_the_version() -> None:
    state = BrokerState(FEATURES)
    for name in ("A", "B", "A"):
        state.topic_table.put(TopicConfig(name), 0)
    apply(state, DeleteTopic("B"))
    apply(state, DeleteTopic("never there"))
    assert state.topic_table.changes.since(0) == {"A", "B"}
    assert state.topic_table.changes.since(2) == {"A", "B"}
    assert state.topic_table.changes.since(3) == {"B"}
    assert state.topic_table.changes.since(4) == set()


def test_what_was_too_long_ago_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_changes, "MAX_REMEMBERED", 2)
    state = BrokerState(FEATURES)
    for number in range(4):
        state.topic_table.put(TopicConfig(f"T{number}"), 0)
    assert state.topic_table.changes.since(1) is None
    assert state.topic_table.changes.since(2) == {"T2", "T3"}


def test_a_state_from_a_snapshot_knows_no_change_before_it() -> None:
    state = BrokerState(FEATURES)
    for name in ("A", "B"):
        state.topic_table.put(TopicConfig(name), 0)
    restored = decode_state(encode_state(state, 0.0), 0.0, FEATURES)
    assert restored.topic_table.changes.since(1) is None
    assert restored.topic_table.changes.since(2) == set()
    restored.topic_table.put(TopicConfig("C"), 0)
    assert restored.topic_table.changes.since(2) == {"C"}
