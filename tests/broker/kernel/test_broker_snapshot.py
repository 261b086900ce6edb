import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import CorruptionError
from dledger_broker.features import FEATURES
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.tables import ROWS_PER_FRAME
from dledger_broker.kernel.topics import DeleteTopic
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig
from tests.broker.kernel.applied_commands import apply


def state_of(topics: int, queues: int, groups: int) -> BrokerState:
    state = BrokerState(FEATURES)
    for number in range(topics):
        topic = state.topic_table.put(
            TopicConfig(f"topic-{number}", queues, queues, attributes={"k": "v"}), 100 + number
        )
        for queue_id in range(queues):
            queue = topic.queue(queue_id)
            queue.next_offset, queue.first_offset = 10 + queue_id, queue_id
            state.topic_table.queues_changed((queue,))
    for number in range(groups):
        state.table(GROUPS).put(SubscriptionGroupConfig(f"group-{number}"))
        state.table(OFFSETS).commit(f"group-{number}", "topic-0", 0, number)
    state.members.put("n0", (16, 17))
    return state


@given(st.integers(1, 97))
def test_a_state_survives_a_snapshot_stream_in_chunks_of_any_size(chunk_bytes):
    state = state_of(topics=3, queues=2, groups=4)
    stream = b"".join(encode_state(state, 0.0))
    cuts = (stream[start : start + chunk_bytes] for start in range(0, len(stream), chunk_bytes))
    found = decode_state(cuts, 0.0, FEATURES)
    assert found.digest() == state.digest()
    assert found.topic_table.version == state.topic_table.version
    assert found.topics.keys() == state.topics.keys()
    assert found.topics["topic-1"].config == state.topics["topic-1"].config
    assert found.topics["topic-1"].created_position == 101
    assert found.table(GROUPS).by_name == state.table(GROUPS).by_name
    assert found.members.kinds == {"n0": (16, 17)}
    queue = found.topics["topic-2"].queues[1]
    assert (queue.next_offset, queue.staged_offset, queue.first_offset) == (11, 11, 1)


def test_a_snapshot_does_not_see_later_changes():
    state = state_of(topics=2, queues=2, groups=3)
    digest = state.digest()
    chunks = encode_state(state, 0.0)
    first = next(chunks)
    state.table(OFFSETS).commit("group-1", "topic-0", 0, 999)
    apply(state, DeleteTopic("topic-1"))
    state.table(GROUPS).put(SubscriptionGroupConfig("group-0", consume_enable=False))
    queue = state.topics["topic-0"].queues[0]
    queue.next_offset = 77
    state.topic_table.queues_changed((queue,))
    assert decode_state([first, *chunks], 0.0, FEATURES).digest() == digest


def test_a_large_state_is_encoded_a_few_hundred_rows_at_a_time():
    rows = [
        len(frame["rows"])
        for chunk in encode_state(state_of(topics=10, queues=1000, groups=20), 0.0)
        if "rows" in (frame := msgspec.msgpack.decode(chunk[4:]))
    ]
    assert sum(rows) > 10 * 1000
    assert max(rows) == ROWS_PER_FRAME


def test_an_incomplete_snapshot_is_refused():
    stream = b"".join(encode_state(state_of(topics=2, queues=2, groups=1), 0.0))
    for cut in (1, 5, 40):
        with pytest.raises(CorruptionError):
            decode_state([stream[:-cut]], 0.0, FEATURES)


@given(st.data())
def test_a_damaged_snapshot_is_refused_or_equal(data):
    state = state_of(topics=2, queues=1, groups=1)
    stream = bytearray(b"".join(encode_state(state, 0.0)))
    stream[data.draw(st.integers(0, len(stream) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = decode_state([bytes(stream)], 0.0, FEATURES)
    except CorruptionError:
        return
    assert found.digest() == state.digest()
