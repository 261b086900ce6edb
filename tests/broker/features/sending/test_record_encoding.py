"""One record for one message, whoever encodes it: a single send in its short way, a batch, the broker's own writer."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from served_broker import STORE_HOST, ServedBroker, make_served_broker, send_ext

from dledger.format import HEADER_BYTES
from dledger_broker.config import BrokerConfig
from dledger_broker.kernel.units import NewRecord
from dledger_broker.kernel.writer import LogWriter
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.node import NODE_ID
from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.record import MessageRecord, iter_records

SHORT, LONG = "T1", "t" * 127


class Sent(NamedTuple):
    body: bytes
    flag: int
    properties: bytes


MESSAGES = st.lists(
    st.builds(
        Sent,
        st.binary(max_size=40),
        st.integers(-(2**31), 2**31 - 1),
        st.sampled_from([b"UNIQ_KEY\x01U%d\x02", b"TAGS\x01a\x02UNIQ_KEY\x01U%d", b"UNIQ_KEY\x01U%d\x02TAGS\x01b"]),
    ),
    min_size=1,
    max_size=4,
)


def fresh_broker() -> ServedBroker:
    broker = make_served_broker(
        BrokerConfig(broker_group="broker-a", node_id=NODE_ID, data_dir=Path("unused")), BrokerInMemory()
    )
    for topic in (SHORT, LONG):
        broker.memory.create_topic(topic)
    return broker


def stored(broker: ServedBroker) -> tuple[bytes, list[MessageRecord]]:
    """The records of the one entry that has some."""
    log = broker.memory.log
    last = log.entries[-1]
    data = bytes(log.data[last.position + HEADER_BYTES : last.end - last.channel])
    return data, list(iter_records(data, verify_crc=True))


@given(st.sampled_from([SHORT, LONG]), MESSAGES, st.integers(0, 3), st.integers(0, 2), st.sampled_from([0, 1, 0x301]))
def test_a_message_has_one_record_whoever_encodes_it(
    topic: str, sent: list[Sent], queue_id: int, reconsume_times: int, sys_flag: int
) -> None:
    messages = [BatchMessage(each.flag, each.body, each.properties % number) for number, each in enumerate(sent)]
    letters = {"j": str(reconsume_times), "f": str(sys_flag)}
    singly, together, written = fresh_broker(), fresh_broker(), fresh_broker()
    client = singly.client()
    for message in messages:
        ext = send_ext(topic, queue_id, message.properties.decode(), h=str(message.flag), **letters)
        client.send(310, ext, message.body)
    singly.settle()
    together.client().send_message(topic, encode_batch(messages), queue_id, code=320, **letters)
    expected, records = stored(singly)
    assert [record.body for record in records] == [message.body for message in messages]
    assert stored(together)[0] == expected
    writer = LogWriter(written.memory.machine, written.memory.node, written.memory.env, STORE_HOST)
    writer.write([as_new(record, client.born_host) for record in records], done=lambda _: None)
    written.settle()
    assert stored(written)[0] == expected
    tails = [bytes(broker.memory.queue(topic, queue_id).view.tail) for broker in (singly, together, written)]
    assert tails == [tails[0]] * 3


def as_new(record: MessageRecord, born_host: bytes) -> NewRecord:
    return NewRecord(
        topic=record.topic,
        queue_id=record.queue_id,
        body=record.body,
        properties=record.properties,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_ms=record.born_timestamp,
        born_host=born_host,
        reconsume_times=record.reconsume_times,
    )
