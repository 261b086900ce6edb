"""Schedules of reads that wait for quotas while another node begins to lead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dledger_broker.features.quotas.gate import READ_HOLD_S
from dledger_broker.features.quotas.table import QuotaKind
from dledger_remoting.bodies import encode_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.quotas import Quota
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.schedules.brokers import TOPIC, Brokers
from dledger_sim.brokers.service import BrokerSettings

WAITED_S: Final = 2.0
LATE_S: Final = 0.5


def read_that_two_leaders_hold() -> None:
    """Check that a read's wait for quotas is limited in total, and not anew at each leader.

    1. More was popped than the quota allows. The next pop, through a follower, waits at the leader.
    2. The leader hands over. The pop comes back to the follower, which reaches the next leader only later.
    3. At the new leader too more was popped than the quota allows, and the pop has waited for two seconds.

    Seeds hardly meet this: a leader begins with unused quotas. Another read would have to use a quota up there before
    the waiting read is passed on to it.
    """
    brokers = Brokers(BrokerSettings(forward_hold_ms=60_000))
    group, old = brokers.group, brokers.leader
    new, between = (name for name in group.nodes if name != old)
    waiting = waiting_pop(brokers, between)
    brokers.run(WAITED_S)
    group.network.block(new, between)
    brokers.hand_over(new)
    brokers.run(0.5)
    assert brokers.leader == new
    more = brokers.ask(brokers.connect(new), RequestCode.POP_MESSAGE, _pop(8))
    brokers.run(0.1)
    assert [answer and answer.code for answer in more] == [ResponseCode.SUCCESS]
    group.network.heal()
    brokers.run(READ_HOLD_S - WAITED_S + LATE_S)
    assert [answer and answer.code for answer in waiting] == [ResponseCode.SYSTEM_BUSY]


def waiting_pop(brokers: Brokers, through: str) -> list[Answer | None]:
    """Let a pop through a node wait for a quota of one message per second, of which six were just popped."""
    leader = brokers.connect(brokers.leader)
    for _ in range(12):
        brokers.send(leader, TOPIC)
    brokers.run(0.5)
    quota = Quota(QuotaKind.TOPIC_READS, TOPIC, 1)
    brokers.ask(leader, RequestCode.PUT_QUOTA, {}, encode_body(quota))
    brokers.run(0.5)
    brokers.ask(leader, RequestCode.POP_MESSAGE, _pop(6))
    brokers.run(0.1)
    return brokers.ask(brokers.connect(through), RequestCode.POP_MESSAGE, _pop(1))


def _pop(messages: int) -> dict[str, str]:
    return {
        "consumerGroup": "poppers",
        "topic": TOPIC,
        "queueId": "-1",
        "maxMsgNums": str(messages),
        "invisibleTime": "60000",
        "pollTime": "0",
        "bornTime": "0",
        "initMode": "0",
        "order": "false",
    }


QUOTA_SCHEDULES: Final[tuple[Callable[[], None], ...]] = (read_that_two_leaders_hold,)
