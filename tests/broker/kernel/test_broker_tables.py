import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from dledger_broker.features import FEATURES
from dledger_broker.features.groups.table import GROUPS, DeleteGroup
from dledger_broker.features.offsets.table import OFFSETS, OffsetTable
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.topics import DeleteTopic
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig
from tests.broker.kernel.applied_commands import apply

COMMITS = st.lists(
    st.tuples(st.sampled_from("gh"), st.sampled_from("tu"), st.integers(0, 2), st.integers(-1, 1 << 40)), max_size=30
)


@given(COMMITS)
def test_the_digest_of_offsets_does_not_depend_on_their_history(commits):
    step_by_step, at_once = OffsetTable(), OffsetTable()
    final: dict[tuple[str, str, int], int] = {}
    for group, topic, queue_id, offset in commits:
        step_by_step.commit(group, topic, queue_id, offset)
        final[group, topic, queue_id] = offset
    for key in sorted(final, reverse=True):
        at_once.commit(*key, final[key])
    assert step_by_step.digest == at_once.digest
    for group, topic in at_once.pairs():
        at_once.remove(group, topic)
    assert at_once.digest == 0


@given(COMMITS, COMMITS)
def test_a_capture_of_offsets_does_not_see_later_commits(before, after):
    table, expected = OffsetTable(), {}
    for group, topic, queue_id, offset in before:
        table.commit(group, topic, queue_id, offset)
        expected.setdefault((group, topic), {})[queue_id] = offset
    captured = table.capture()
    for commit in after:
        table.commit(*commit)
    table.on_group_deleted("g", clean_offsets=True)
    assert {key: dict(offsets) for key, offsets in captured} == expected


def test_a_digest_is_the_same_in_every_process():
    code = (
        "from dledger_broker.features import FEATURES\n"
        "from dledger_broker.kernel.state import BrokerState\n"
        "from dledger_broker.features.offsets.table import OFFSETS\n"
        "from dledger_remoting.topics import TopicConfig\n"
        "state = BrokerState(FEATURES)\n"
        "topic = state.topic_table.put(TopicConfig('orders', attributes={'b': '1', 'a': '2'}), 48)\n"
        "queue = topic.queue(1)\n"
        "queue.next_offset = 7\n"
        "state.topic_table.queues_changed((queue,))\n"
        "state.table(OFFSETS).commit('g', 'orders', 1, 5)\n"
        "print(state.digest())\n"
    )
    digests = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment).stdout
        for environment in ({"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)} for seed in ("1", "2"))
    }
    assert len(digests) == 1


def test_a_deleted_topic_and_a_queue_without_messages_leave_nothing_in_the_state(state):
    empty = state.digest()
    topic = state.topic_table.put(TopicConfig("orders"), 48)
    with_topic = state.digest()
    state.topic_table.queues_changed((topic.queue(3),))
    assert state.digest() == with_topic
    assert list(decode_state(encode_state(state, 0.0), 0.0, FEATURES).topic_table.queues()) == []
    queue = topic.queue(0)
    queue.next_offset = 9
    state.topic_table.queues_changed((queue,))
    state.table(OFFSETS).commit("g", "orders", 0, 4)
    assert empty not in {with_topic, state.digest()}
    apply(state, DeleteTopic("orders"))
    assert state.digest() == empty
    assert state.table(OFFSETS).get("g", "orders", 0) is None


def test_groups_are_replaced_and_removed(state):
    empty = state.digest()
    state.table(GROUPS).put(SubscriptionGroupConfig("g"))
    state.table(GROUPS).put(SubscriptionGroupConfig("g", retry_max_times=1))
    state.table(OFFSETS).commit("g", "orders", 0, 4)
    apply(state, DeleteGroup("g", clean_offsets=False))
    assert state.table(OFFSETS).get("g", "orders", 0) == 4
    apply(state, DeleteGroup("g", clean_offsets=True))
    assert state.digest() == empty


def test_a_first_offset_only_rises_and_only_for_its_own_incarnation_of_the_topic(state):
    queue = state.topic_table.put(TopicConfig("orders"), 48).queue(0)
    queue.next_offset = 10
    state.topic_table.trim_queue("orders", 48, 0, 6)
    state.topic_table.trim_queue("orders", 48, 0, 4)
    state.topic_table.trim_queue("orders", 0, 0, 9)
    state.topic_table.trim_queue("gone", 48, 0, 9)
    assert queue.first_offset == 6
