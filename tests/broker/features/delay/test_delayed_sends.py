"""Sends that ask for a delay, as a broker on a fake node answers them."""

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker

from dledger_broker.features.delay.messages import STEP_BACK_MS, DueMessages
from dledger_broker.testing.environment import START_MS
from dledger_remoting.codes import ResponseCode
from dledger_remoting.recalls import parse_delay_levels
from dledger_remoting.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from tests.broker.features.delay.delayed_brokers import pending

DAYS_40_S = 3_456_000
END_MS = START_MS + DAYS_40_S * 1000


@pytest.mark.parametrize(
    ("properties", "topic", "queue_id"),
    [
        ("DELAY\x011\x02", SCHEDULE_TOPIC, 0),
        ("DELAY\x0199\x02", SCHEDULE_TOPIC, 17),
        ("TIMER_DELAY_SEC\x01259200\x02", TIMER_TOPIC, 0),
        (f"TIMER_DELIVER_MS\x01{START_MS + 100_000}\x02", TIMER_TOPIC, 0),
        (f"__STARTDELIVERTIME\x01{START_MS + 100_000}\x02", TIMER_TOPIC, 0),
        ("DELAY\x010\x02", "T1", 2),
        ("DELAY\x01-1\x02", "T1", 2),
        ("TIMER_DELAY_MS\x010\x02", "T1", 2),
        (f"TIMER_DELIVER_MS\x01{START_MS - 9}\x02", "T1", 2),
    ],
)
def test_a_message_waits_in_the_topic_and_queue_of_rocketmq_unless_its_delay_is_zero_negative_or_past(
    client: FakeClient, properties: str, topic: str, queue_id: int
) -> None:
    answer = client.send_message("T1", b"later", i=properties, e="2")
    assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, "2", "0")
    assert client.broker.memory.bodies(topic, queue_id) == [b"later"]
    waits = topic != "T1"
    assert (len(client.broker.memory.bodies("T1", 2)), pending(client.broker)) == (not waits, waits)


@pytest.mark.parametrize(
    ("name", "within", "beyond"),
    [
        ("TIMER_DELAY_SEC", DAYS_40_S, DAYS_40_S + 1),
        ("TIMER_DELAY_MS", DAYS_40_S * 1000, DAYS_40_S * 1000 + 1),
        ("TIMER_DELIVER_MS", END_MS, END_MS + 60_000),
        ("__STARTDELIVERTIME", END_MS, END_MS + 60_000),
    ],
)
def test_a_message_may_be_delayed_by_at_most_40_days(
    make_broker: MakeBroker, name: str, within: int, beyond: int
) -> None:
    broker = make_broker(timer_max_delay_s=DAYS_40_S)
    client = broker.client()
    refused = client.send_message("T1", b"too late", i=f"{name}\x01{beyond}\x02")
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"the limit is {DAYS_40_S} s" in (refused.remark or "")
    assert client.send_message("T1", b"later", i=f"{name}\x01{within}\x02").code == ResponseCode.SUCCESS
    assert broker.memory.bodies(TIMER_TOPIC) == [b"later"]
    assert pending(broker) == 1
    broker.advance(10.0)
    assert broker.memory.bodies("T1") == []


@pytest.mark.parametrize("text", ["", "1", "1x", "0s", "s", "1s " * 65, "\u0661s"])
def test_an_invalid_table_of_delay_levels_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"levels|no delay"):
        parse_delay_levels(text)


def test_the_start_of_delays_never_goes_back_unless_clocks_are_set_back(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = broker.service.parts[DueMessages]

    def reckoned(known_ms: int | None) -> int | None:
        monkeypatch.setattr(part._clock, "delay_base_ms", lambda: known_ms)
        return part.delay_base_ms()

    better_estimate = [reckoned(known_ms) for known_ms in (10_000, 9_700, None, 9_900, 10_100)]
    assert better_estimate == [10_000, 10_000, None, 10_000, 10_100]
    assert reckoned(10_100 - STEP_BACK_MS - 1) == 10_100 - STEP_BACK_MS - 1, "clocks that were set back"
