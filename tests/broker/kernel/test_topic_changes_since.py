"""Changes of topics since a version can be told as long as they are remembered."""

import pytest

from dledger_broker.features import FEATURES
from dledger_broker.kernel import topics
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.topics import DeleteTopic
from dledger_remoting.topics import TopicConfig
from tests.broker.kernel.applied_commands import apply


def test_each_topic_changed_after_a_version_is_named_once(state: BrokerState) -> None:
    for name in ("A", "B", "A"):
        state.topic_table.put(TopicConfig(name), 0)
    apply(state, DeleteTopic("B"))
    apply(state, DeleteTopic("never there"))
    assert state.topic_table.changes.since(0) == {"A", "B"}
    assert state.topic_table.changes.since(2) == {"A", "B"}
    assert state.topic_table.changes.since(3) == {"B"}
    assert state.topic_table.changes.since(4) == set()


def test_topic_changes_beyond_the_remembered_number_or_before_a_snapshot_are_unknown(
    state: BrokerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "MAX_REMEMBERED", 2)
    for number in range(4):
        state.topic_table.put(TopicConfig(f"T{number}"), 0)
    assert state.topic_table.changes.since(1) is None
    assert state.topic_table.changes.since(2) == {"T2", "T3"}
    restored = decode_state(encode_state(state, 0.0), 0.0, FEATURES).topic_table
    assert restored.changes.since(3) is None
    assert restored.changes.since(4) == set()
    restored.put(TopicConfig("C"), 0)
    assert restored.changes.since(4) == {"C"}
