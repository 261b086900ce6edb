"""Limits of what may wait: a number of messages, and a quarter of the smallest node's log; each is reached here."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from served_broker import FakeClient, ServedBroker

from dledger.store.disk import DiskSpace
from dledger_broker.features.delay.limits import LOG_BYTES
from dledger_broker.features.delay.table import TIMERS, Pending
from dledger_remoting.codes import RequestCode
from dledger_sim.log.registers import leading
from tests.broker.features.delay.delayed_brokers import Delayed

MakeBroker = Callable[..., ServedBroker]
DAY_MS = 86_400_000


def pending(broker: ServedBroker) -> Pending:
    return broker.memory.machine.state.table(TIMERS).total


def gauge(broker: ServedBroker, name: str) -> float:
    (value,) = (gauge.read() for part in broker.service.parts for gauge in part.gauges if gauge.name == name)
    return value


def send_until_refused(client: FakeClient, body: bytes = b"later") -> str:
    """Send messages that wait; returns the text with which one is refused."""
    for _ in range(100):
        answer = client.send_message("T1", body, i="DELAY\x0118\x02")
        if answer.code:
            assert answer.code == 1
            return str(answer.remark)
    pytest.fail("nothing was refused")


def send_back_until_refused(client: FakeClient) -> str:
    """Send a message back again and again; returns the text with which that is refused."""
    sent = client.send_message("T1", b"now")
    ext = {"offset": str(int(sent.ext["msgId"][-16:], 16)), "group": "G1", "delayLevel": "18"}
    for _ in range(100):
        answer = client.call_from_disk(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        if answer.code:
            assert answer.code == 1
            return str(answer.remark)
    pytest.fail("nothing was refused")


def test_max_pending_timers_is_for_sends_and_a_quarter_more_for_what_is_sent_back(make_broker: MakeBroker) -> None:
    broker = make_broker(max_pending_timers=8)
    client = broker.client()
    assert "max_pending_timers is 8" in send_until_refused(client)
    assert pending(broker).rows == 8
    assert "max_pending_timers is 8" in send_back_until_refused(client)
    assert pending(broker).rows == 10
    assert gauge(broker, "max_pending_timers") == 2
    assert client.send_message("T1", b"now").code == 0


def test_what_waits_may_be_a_quarter_of_the_largest_log_that_is_configured(make_broker: MakeBroker) -> None:
    broker = make_broker(retention_bytes=20_000)
    broker.memory.node.disk_space = DiskSpace(1 << 40, 1 << 40)
    client = broker.client()
    text = send_until_refused(client, bytes(200))
    assert "have the nodes keep more" in text
    size = pending(broker).bytes // pending(broker).rows
    assert 5_000 - 2 * size < pending(broker).bytes <= 5_000
    send_back_until_refused(client)
    assert 6_250 - size < pending(broker).bytes <= 6_250
    assert gauge(broker, "max_pending_timer_bytes") == 2


def test_what_waits_may_be_a_quarter_of_what_the_disk_may_hold_of_the_log(make_broker: MakeBroker) -> None:
    broker = make_broker(disk_max_used_ratio=0.75)
    assert broker.client().send_message("T1", b"now").code == 0
    node = broker.memory.node
    log_bytes = node.end_position - node.first_position
    node.disk_space = DiskSpace(free_bytes=40_000_000 - log_bytes, total_bytes=40_000_000)
    assert gauge(broker, "timer_bytes_limit") == 30_000_000 // 4
    node.disk_space = DiskSpace(free_bytes=30_000_000 - log_bytes, total_bytes=40_000_000)
    assert gauge(broker, "timer_bytes_limit") == 20_000_000 // 4, "others have files on it, too"


def test_on_a_disk_that_others_have_filled_a_quarter_of_a_segment_may_wait(make_broker: MakeBroker) -> None:
    broker = make_broker(disk_max_used_ratio=0.75)
    node = broker.memory.node
    node.disk_space = DiskSpace(free_bytes=10_000_000, total_bytes=1_000_000_000)
    assert gauge(broker, "timer_bytes_limit") == node.segment_bytes // 4
    client = broker.client()
    assert "a disk fuller than disk_max_used_ratio" in send_until_refused(client, bytes(20_000))
    assert 10 * 20_000 < pending(broker).bytes <= node.segment_bytes // 4
    assert gauge(make_broker(disk_max_used_ratio=0.75, retention_bytes=20_000), "timer_bytes_limit") == 5_000


def test_max_pending_timer_bytes_lowers_the_limit_and_never_raises_it(make_broker: MakeBroker) -> None:
    broker = make_broker(retention_bytes=10_000, max_pending_timer_bytes=1_000)
    assert gauge(broker, "timer_bytes_limit") == 1_000
    broker = make_broker(retention_bytes=10_000, max_pending_timer_bytes=9_000)
    assert gauge(broker, "timer_bytes_limit") == 2_500


def test_the_smallest_voter_decides() -> None:
    """Members tell the leader; one that is silent for long is left out."""
    delayed = Delayed()
    brokers = delayed.brokers
    brokers.run(6.0)
    small = brokers.follower
    disk = brokers.group.nodes[small].disk
    disk.capacity_bytes = disk.allocated_bytes + 8_000_000
    brokers.run(7.0)
    told = delayed.leader.service.gossip.told(LOG_BYTES)
    assert set(told) == set(brokers.group.nodes) - {brokers.leader}
    assert told[small] == min(told.values()) < 8_000_000
    gauges = {gauge.name: gauge.read() for gauge in delayed.due_messages.gauges}
    assert gauges["timer_bytes_limit"] == told[small] // 4
    life = leading(brokers.group)
    brokers.group.kill(small)
    brokers.run(26.0)
    assert leading(brokers.group) is life
    assert small not in delayed.leader.service.gossip.told(LOG_BYTES)
