"""Sends that ask for a delay, as a broker on a fake node answers them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from served_broker import FakeClient, ServedBroker

from dledger_broker.config import build_config
from dledger_broker.errors import ConfigError
from dledger_broker.features.delay.table import TIMERS, Pending
from dledger_broker.testing.environment import START_MS
from dledger_remoting.codes import ResponseCode
from dledger_remoting.delays import parse_delay_levels
from dledger_remoting.topics import SCHEDULE_TOPIC, TIMER_TOPIC

MakeBroker = Callable[..., ServedBroker]
DAYS_40_S = 3_456_000


def pending(broker: ServedBroker) -> Pending:
    return broker.memory.machine.state.table(TIMERS).total


@pytest.mark.parametrize(
    ("properties", "topic", "queue_id"),
    [
        ("DELAY\x011\x02", SCHEDULE_TOPIC, 0),
        ("DELAY\x0199\x02", SCHEDULE_TOPIC, 17),
        ("TIMER_DELAY_SEC\x01259200\x02", TIMER_TOPIC, 0),
        (f"TIMER_DELIVER_MS\x01{START_MS + 100_000}\x02", TIMER_TOPIC, 0),
        (f"__STARTDELIVERTIME\x01{START_MS + 100_000}\x02", TIMER_TOPIC, 0),
    ],
)
def test_a_delayed_message_waits_where_rocketmqs_do(
    broker: ServedBroker, client: FakeClient, properties: str, topic: str, queue_id: int
) -> None:
    answer = client.send_message("T1", b"later", i=properties, e="2")
    assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, "2", "0")
    assert broker.memory.bodies(topic, queue_id) == [b"later"]
    assert broker.memory.bodies("T1", 2) == []
    assert pending(broker).rows == 1


@pytest.mark.parametrize(
    "properties",
    ["DELAY\x010\x02", "DELAY\x01-1\x02", "TIMER_DELAY_MS\x010\x02", f"TIMER_DELIVER_MS\x01{START_MS - 9}\x02"],
)
def test_what_asks_for_nothing_is_delivered_at_once(broker: ServedBroker, client: FakeClient, properties: str) -> None:
    assert client.send_message("T1", b"now", i=properties).code == 0
    assert broker.memory.bodies("T1") == [b"now"]
    assert pending(broker).rows == 0


@pytest.mark.parametrize(
    ("within", "beyond"),
    [
        (f"TIMER_DELAY_SEC\x01{DAYS_40_S}\x02", f"TIMER_DELAY_SEC\x01{DAYS_40_S + 1}\x02"),
        (f"TIMER_DELAY_MS\x01{DAYS_40_S * 1000}\x02", f"TIMER_DELAY_MS\x01{DAYS_40_S * 1000 + 1}\x02"),
        (
            f"TIMER_DELIVER_MS\x01{START_MS + DAYS_40_S * 1000}\x02",
            f"TIMER_DELIVER_MS\x01{START_MS + (DAYS_40_S + 60) * 1000}\x02",
        ),
        (
            f"__STARTDELIVERTIME\x01{START_MS + DAYS_40_S * 1000}\x02",
            f"__STARTDELIVERTIME\x01{START_MS + (DAYS_40_S + 60) * 1000}\x02",
        ),
    ],
)
def test_a_message_may_be_40_days_off_and_not_more(make_broker: MakeBroker, within: str, beyond: str) -> None:
    broker = make_broker(timer_max_delay_s=DAYS_40_S)
    client = broker.client()
    refused = client.send_message("T1", b"too late", i=beyond)
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"the limit is {DAYS_40_S} s" in (refused.remark or "")
    assert client.send_message("T1", b"later", i=within).code == ResponseCode.SUCCESS
    assert broker.memory.bodies(TIMER_TOPIC) == [b"later"]
    assert pending(broker).rows == 1
    broker.advance(10.0)
    assert broker.memory.bodies("T1") == []


def test_no_configuration_lets_messages_be_farther_off() -> None:
    keys = {"broker_group": "broker-a", "node_id": "n0", "data_dir": "data"}
    assert build_config({**keys, "timer_max_delay_s": DAYS_40_S}).timer_max_delay_s == DAYS_40_S
    with pytest.raises(ConfigError, match=r"timer_max_delay_s = 3456001 is outside 1\.\.3456000"):
        build_config({**keys, "timer_max_delay_s": DAYS_40_S + 1})


def test_more_than_may_wait_is_refused_and_stores_nothing(make_broker: MakeBroker) -> None:
    broker = make_broker(max_pending_timers=2)
    client = broker.client()
    codes = [client.send_message("T1", b"later", i="DELAY\x011\x02").code for _ in range(3)]
    assert codes == [0, 0, 1]
    assert pending(broker).rows == 2
    assert client.send_message("T1", b"now").code == 0


@pytest.mark.parametrize("text", ["", "1", "1x", "0s", "s", "1s " * 65, "\u0661s"])
def test_a_table_of_levels_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"levels|no delay"):
        parse_delay_levels(text)
