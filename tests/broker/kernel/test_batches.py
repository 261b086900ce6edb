"""Batches of committed entries: the same entries have the same effect, however they are cut into batches."""

import random

import pytest
from broker_in_memory import contents

from dledger.types import EntryKind
from dledger_broker.testing import BrokerInMemory, FakeLog, Message
from dledger_broker.testing.node import FakeNode
from dledger_remoting.topics import SubscriptionGroupConfig

TOPICS = ("orders", "audits")


def history(seed: int) -> BrokerInMemory:
    """Return a broker on which topics come and go between messages, groups and offsets."""
    rng = random.Random(seed)
    broker = BrokerInMemory(log=FakeLog(segment_bytes=1 << 16))
    machine = broker.machine
    for number in range(120):
        topic = rng.choice(TOPICS)
        if topic not in machine.state.topics:
            broker.create_topic(topic)
        for _ in range(rng.randrange(4)):
            broker.send(topic, rng.randrange(3), Message(b"%d" % number, keys=f"k{number}"))
        match rng.randrange(8):
            case 0:
                broker.delete_topic(topic)
            case 1:
                broker.groups.ensure_group(SubscriptionGroupConfig(f"g{number % 3}"), lambda _error: None)
            case 2:
                broker.offsets.commit("g1", topic, 0, number)
        broker.env.advance(0.05)
    return broker


@pytest.mark.parametrize("seed", range(5))
def test_applying_entries_in_batches_equals_applying_entries_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch):
    written = history(seed)
    one_by_one = BrokerInMemory(log=written.log, lead=False)

    def catch_up_in_batches(node: FakeNode) -> None:
        rng = random.Random(seed)
        while node.applied_index + 1 < len(node.log.entries):
            metas = node.log.entries[node.applied_index + 1 :][: rng.randint(1, 20)]
            groups = [node._group(meta, ()) for meta in metas if meta.kind == EntryKind.GROUP]
            if groups:
                node._machine.apply(groups)
            node.applied_index, node.applied_position = metas[-1].index, metas[-1].end

    monkeypatch.setattr(FakeNode, "catch_up", catch_up_in_batches)
    in_batches = BrokerInMemory(log=written.log, lead=False)
    assert in_batches.machine.digest() == one_by_one.machine.digest() == written.machine.digest()
    for broker in (one_by_one, in_batches):
        broker.flush_views()
        broker.env.advance(1)
    lists = contents(written)
    assert any(lists.values())
    for broker in (one_by_one, in_batches):
        assert contents(broker) == lists
        assert contents(broker.restart(lead=False)) == lists
