"""A delivery without a cluster is what a consumer gets from a broker, and a filter selects the same messages."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from client_fakes import fake_cluster

from dledger_client import ClassFilter, InvalidArgumentError, Message, Producer, PushConsumer, Settlement, Sql
from dledger_client.testing import delivered, is_wanted

MADE_BY_THE_STORE = {"message_id", "offset_message_id", "born_timestamp_ms", "stored_timestamp_ms", "settle", "queue"}


@pytest.mark.parametrize(
    "message",
    [
        Message(b"x", key=["a", "b"], tags="t", properties={"region": "eu"}, unique_key="u"),
        Message(b"y" * 10_000, deliver_at=datetime(2020, 1, 1, tzinfo=UTC)),
    ],
)
async def test_a_delivery_equals_what_a_consumer_receives(message):
    async with fake_cluster(topics={"T": 1}) as cluster, Producer(cluster.namesrv) as producer:
        await producer.send("T", message)
        async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
            received = await anext(aiter(consumer))
    made = delivered("T", message)
    for name in set(made.__struct_fields__) - MADE_BY_THE_STORE - {"physical_offset", "properties"}:
        assert getattr(made, name) == getattr(received, name), name
    assert {**made.properties, "UNIQ_KEY": ""} == {**received.properties, "UNIQ_KEY": ""}


def test_a_delivery_tells_how_it_was_settled():
    settlements = []
    message = delivered("T", b"x", settle=lambda _, settlement: settlements.append(settlement))
    message.ack()
    message.retry(delay_s=2)
    message.reject()
    assert settlements == [Settlement(), Settlement(again=True, delay_s=2), Settlement(again=True, give_up=True)]


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        ("no/topic", Message(b"")),
        ("T", Message(b"", tags="a || b")),
        ("T", Message(b"", properties={"KEYS": "k"})),
        ("T", Message(b"", properties={"n": 5})),
    ],
)
def test_a_delivery_refuses_what_a_send_refuses(topic, message):
    with pytest.raises(InvalidArgumentError):
        delivered(topic, message)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("*", True),
        ("a || b", True),
        ("c", False),
        (Sql("TAGS = 'b' AND n > 4"), True),
        (Sql("n > 5"), False),
    ],
)
def test_a_filter_selects_what_it_selects_at_a_broker(wanted, expected):
    assert is_wanted(delivered("T", Message(b"", tags="b", properties={"n": "5"})), wanted) is expected


@pytest.mark.parametrize("wanted", ["||", Sql("n >"), ClassFilter("com.example.Large")])
def test_a_filter_that_cannot_be_applied_is_refused(wanted):
    with pytest.raises(InvalidArgumentError):
        is_wanted(delivered("T", b""), wanted)
