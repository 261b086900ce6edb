"""Limits of what may wait: a number of messages, and a quarter of the smallest node's log. Each is reached here."""

from collections.abc import Callable

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker

from dledger.store.disk import DiskSpace
from dledger_broker.features.delay.limits import LOG_BYTES
from dledger_broker.features.delay.table import TIMERS, Pending
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand
from dledger_sim.log.registers import leading
from tests.broker.features.delay.delayed_brokers import Delayed


def pending(broker: ServedBroker) -> Pending:
    return broker.table(TIMERS).total


def until_refused(send: Callable[[], RemotingCommand]) -> str:
    """Send messages that wait, and return the text of the first refusal."""
    for _ in range(100):
        answer = send()
        if answer.code:
            assert answer.code == 1
            return str(answer.remark)
    pytest.fail("nothing was refused")


def send_until_refused(client: FakeClient, body: bytes = b"later") -> str:
    return until_refused(lambda: client.send_message("T1", body, i="DELAY\x0118\x02"))


def send_back_until_refused(client: FakeClient) -> str:
    def send_back() -> RemotingCommand:
        sent = client.send_message("T1", b"now")
        ext = {"offset": str(int(sent.ext["msgId"][-16:], 16)), "group": "G1", "delayLevel": "18"}
        return client.call_from_disk(RequestCode.CONSUMER_SEND_MSG_BACK, ext)

    return until_refused(send_back)


def test_send_backs_may_exceed_max_pending_timers_by_a_quarter(make_broker: MakeBroker) -> None:
    broker = make_broker(max_pending_timers=8)
    client = broker.client()
    assert "max_pending_timers is 8" in send_until_refused(client)
    assert pending(broker).rows == 8
    assert "max_pending_timers is 8" in send_back_until_refused(client)
    assert pending(broker).rows == 10
    assert broker.gauge("max_pending_timers") == 2
    assert client.send_message("T1", b"now").code == 0


def test_delayed_messages_may_fill_a_quarter_of_the_configured_log_size(make_broker: MakeBroker) -> None:
    broker = make_broker(retention_bytes=20_000)
    broker.memory.node.disk_space = DiskSpace(1 << 40, 1 << 40)
    client = broker.client()
    text = send_until_refused(client, bytes(200))
    assert "have the nodes keep more" in text
    size = pending(broker).bytes // pending(broker).rows
    assert 5_000 - 2 * size < pending(broker).bytes <= 5_000
    send_back_until_refused(client)
    assert 6_250 - size < pending(broker).bytes <= 6_250
    assert broker.gauge("max_pending_timer_bytes") == 2


def test_delayed_messages_may_fill_a_quarter_of_the_log_that_the_disk_can_hold(make_broker: MakeBroker) -> None:
    broker = make_broker(disk_max_used_ratio=0.75)
    assert broker.client().send_message("T1", b"now").code == 0
    node = broker.memory.node
    log_bytes = node.end_position - node.first_position
    node.disk_space = DiskSpace(free_bytes=40_000_000 - log_bytes, total_bytes=40_000_000)
    assert broker.gauge("timer_bytes_limit") == 30_000_000 // 4
    node.disk_space = DiskSpace(free_bytes=30_000_000 - log_bytes, total_bytes=40_000_000)
    assert broker.gauge("timer_bytes_limit") == 20_000_000 // 4, "others have files on it, too"


def test_on_a_full_disk_delayed_messages_may_fill_a_quarter_of_a_segment(make_broker: MakeBroker) -> None:
    broker = make_broker(disk_max_used_ratio=0.75)
    node = broker.memory.node
    node.disk_space = DiskSpace(free_bytes=10_000_000, total_bytes=1_000_000_000)
    assert broker.gauge("timer_bytes_limit") == node.segment_bytes // 4
    client = broker.client()
    assert "a disk fuller than disk_max_used_ratio" in send_until_refused(client, bytes(20_000))
    assert 10 * 20_000 < pending(broker).bytes <= node.segment_bytes // 4
    assert make_broker(disk_max_used_ratio=0.75, retention_bytes=20_000).gauge("timer_bytes_limit") == 5_000


def test_max_pending_timer_bytes_lowers_the_limit_and_never_raises_it(make_broker: MakeBroker) -> None:
    for configured, limit in ((1_000, 1_000), (9_000, 2_500)):
        broker = make_broker(retention_bytes=10_000, max_pending_timer_bytes=configured)
        assert broker.gauge("timer_bytes_limit") == limit


def test_the_smallest_log_of_the_voters_limits_delayed_messages(delayed: Delayed) -> None:
    """Members tell the leader the size of their log. A member that is silent for long is left out."""
    delayed.run(6.0)
    small = delayed.brokers.follower
    disk = delayed.group.nodes[small].disk
    disk.capacity_bytes = disk.allocated_bytes + 8_000_000
    delayed.run(7.0)
    sizes = delayed.leader.service.gossip.reported_facts(LOG_BYTES)
    assert set(sizes) == set(delayed.group.nodes) - {delayed.brokers.leader}
    assert sizes[small] == min(sizes.values()) < 8_000_000
    assert delayed.gauge("timer_bytes_limit") == sizes[small] // 4
    life = leading(delayed.group)
    delayed.group.kill(small)
    delayed.run(26.0)
    assert leading(delayed.group) is life
    assert small not in delayed.leader.service.gossip.reported_facts(LOG_BYTES)
