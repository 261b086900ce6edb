"""Random lives of a broker, compared with a model of dictionaries.

After power losses, lost views, snapshots, trims and changes of leadership, the broker shows what the model says. A
replica that only follows the log has the same digest, and no queue offset is issued twice.
"""

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from job_runs import run_of_a_job

from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.features.retention.trimming import Trimming
from dledger_broker.testing import BrokerInMemory, FakeLog, Message, stage_messages

TOPICS = st.sampled_from(["orders", "audits", "%RETRY%g"])
GROUPS = st.sampled_from(["g", "h"])
QUEUES = st.integers(0, 2)


class BrokerLife(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.random = random.Random(7)
        self.broker = BrokerInMemory(log=FakeLog(segment_bytes=1 << 14))
        self.broker.node.on_trimmed(self.broker.machine._trimmed)
        self.messages: dict[tuple[str, int], list[bytes]] = {}
        self.topics: set[str] = set()
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.number = 0

    @rule(topic=TOPICS)
    def create(self, topic):
        self.broker.create_topic(topic, queues=3)
        self.topics.add(topic)

    @rule(topic=TOPICS)
    def delete(self, topic):
        self.broker.delete_topic(topic)
        self.topics.discard(topic)
        self.messages = {key: bodies for key, bodies in self.messages.items() if key[0] != topic}
        self.offsets = {key: offset for key, offset in self.offsets.items() if key[1] != topic}

    @rule(topic=TOPICS, queue_id=QUEUES, count=st.integers(1, 20))
    def send(self, topic, queue_id, count):
        queue = self.broker.machine.queue(topic, queue_id)
        assert (queue is None) == (topic not in self.topics)
        if queue is None:
            return
        bodies = [b"%d" % (self.number + place) for place in range(count)]
        self.number += count
        expected_offset = len(self.messages.setdefault((topic, queue_id), []))
        assert queue.staged_offset == expected_offset
        self.broker.send(topic, queue_id, *(Message(body) for body in bodies))
        self.messages[topic, queue_id] += bodies

    @rule(topic=TOPICS, queue_id=QUEUES)
    def lose_leadership_with_a_message_in_flight(self, topic, queue_id):
        queue = self.broker.machine.queue(topic, queue_id)
        if queue is not None:
            sent = stage_messages(self.broker.node, queue, [Message(b"never committed")], 1)
            self.broker.node.step_down()
            self.broker.env.run_ready()
            assert sent.outcome == "dropped"
            self.broker.node.lead()

    @rule(group=GROUPS, topic=TOPICS, queue_id=QUEUES, offset=st.integers(-1, 100))
    def commit(self, group, topic, queue_id, offset):
        self.broker.offsets.commit(group, topic, queue_id, offset)
        self.broker.offsets.flush(lambda error: None)
        self.broker.env.run_ready()
        self.offsets[group, topic, queue_id] = offset

    @rule(seconds=st.floats(0, 0.5))
    def let_time_pass(self, seconds):
        self.broker.env.advance(seconds)

    @rule()
    def snapshot(self):
        self.broker.node.snapshot()

    @rule()
    def checkpoint(self):
        self.broker.checkpoint()

    @rule()
    def trim(self):
        for position in self.broker.node.trim_candidates()[-1:]:
            Trimming(self.broker.machine).trim(run_of_a_job(self.broker), position)
            self.broker.env.run_ready()
            assert self.broker.log.first_position == position

    @rule(keep=st.sampled_from(["none", "random", "all"]))
    def power_loss(self, keep):
        self.broker.disk.crash(self.random, keep)
        self.restart()

    @rule(loss=st.sampled_from(["views", "consumequeue", "keyindex"]))
    def lose_views(self, loss):
        self.broker.disk.rmtree(loss)
        self.restart()

    def restart(self):
        digest = self.broker.machine.digest()
        self.broker = self.broker.restart()
        self.broker.node.on_trimmed(self.broker.machine._trimmed)
        assert self.broker.machine.digest() == digest

    @invariant()
    def shows_what_was_sent(self):
        state = self.broker.machine.state
        assert state.topics.keys() == self.topics
        for (topic, queue_id), bodies in self.messages.items():
            queue = self.broker.queue(topic, queue_id)
            assert queue.next_offset == len(bodies)
            assert queue.view.end == queue.next_offset
            assert self.broker.bodies(topic, queue_id) == bodies[queue.min_offset :]

    @invariant()
    def remembers_what_was_committed(self):
        for (group, topic, queue_id), offset in self.offsets.items():
            assert self.broker.machine.state.table(OFFSETS).get(group, topic, queue_id) == offset

    def teardown(self):
        follower = BrokerInMemory(log=self.broker.log, lead=False)
        assert follower.machine.digest() == self.broker.machine.digest()
        self.broker.run(self.broker.machine.keys.catch_up())


BrokerLife.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBrokerLife = BrokerLife.TestCase
