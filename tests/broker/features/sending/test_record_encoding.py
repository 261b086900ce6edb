"""One record for one message, whatever encodes it and in whichever form it comes, and its store time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served_broker import STORE_HOST, MakeBroker, ServedBroker, make_served_broker, records, send_ext

from dledger.format import HEADER_BYTES
from dledger_broker.config import BrokerConfig
from dledger_broker.kernel.parts import Context, Feature, Part
from dledger_broker.kernel.units import NewRecord
from dledger_broker.kernel.writer import LogWriter
from dledger_broker.testing import START_MS, BrokerInMemory
from dledger_broker.testing.environment import FakeEnvironment
from dledger_broker.testing.node import NODE_ID
from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, encode_command
from dledger_remoting.frame import join_frame, split_frames
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


def fresh_broker(*more: Feature) -> ServedBroker:
    config = BrokerConfig(broker_group="broker-a", node_id=NODE_ID, data_dir=Path("unused"))
    broker = make_served_broker(config, BrokerInMemory(), more=more)
    for topic in (SHORT, LONG):
        broker.memory.create_topic(topic)
    return broker


def stored(broker: ServedBroker) -> tuple[bytes, list[MessageRecord]]:
    """Return the data of the last entry, and its records."""
    log = broker.memory.log
    last = log.entries[-1]
    data = bytes(log.data[last.position + HEADER_BYTES : last.end - last.channel])
    return data, list(iter_records(data, verify_crc=True))


@given(st.sampled_from([SHORT, LONG]), MESSAGES, st.integers(0, 3), st.integers(0, 2), st.sampled_from([0, 1, 0x301]))
def test_all_encoders_write_the_same_record_of_a_message(
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
    same = ("topic", "queue_id", "body", "properties", "flag", "sys_flag", "reconsume_times")
    fields = {name: getattr(record, name) for name in same}
    return NewRecord(**fields, born_ms=record.born_timestamp, born_host=born_host)


class Writes(Part):
    """Feature that writes the broker's own records."""

    def __init__(self, context: Context) -> None:
        self.writer: LogWriter = context.writer


def times(monkeypatch: pytest.MonkeyPatch, *wall_ms: int) -> Iterator[None]:
    """Set the wall clock to one time after the other."""
    for now_ms in wall_ms:
        monkeypatch.setattr(FakeEnvironment, "wall_ms", lambda _, now_ms=now_ms: now_ms)
        yield


def test_store_times_of_sends_and_broker_written_records_never_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds in a term, whatever stores a record and whatever the clock does."""
    broker = fresh_broker(Feature(name="writes", build=Writes))
    writer, client = broker.service.parts[Writes].writer, broker.client()
    clock = times(monkeypatch, START_MS + 9, START_MS + 3, START_MS + 20, START_MS + 1)
    own = NewRecord(topic="T1", queue_id=0, body=b"own", born_ms=0, born_host=bytes(8))
    for _ in range(2):
        next(clock)
        client.send_message("T1", b"sent")
        next(clock)
        writer.write([own], done=lambda _: None)
        broker.settle()
    found = records(client.pull("T1"))
    assert [record.body for record in found] == [b"sent", b"own"] * 2
    assert [record.store_timestamp - START_MS for record in found] == [9, 9, 20, 20]


# ---- a send in the common form takes a fast path, which stores and answers what the general path does


UNIQUE_KEYS = ("UNIQ_KEY\x01U1", "UNIQ_KEY\x01", 'UNIQ_KEY\x01näh"\\')
TAGS = ("TAGS\x01A", "TAGS\x01", "KEYS\x01k", "MYTAGS\x01B", "MY_UNIQ_KEY\x01x")
OTHERS = ("DELAY\x010", "DELAY\x013", "TIMER_DELAY_SEC\x015", "MODEL\x01y", "", "no separator")
PROPERTIES = st.lists(st.sampled_from([*UNIQUE_KEYS, *TAGS, *OTHERS]), max_size=4).map("\x02".join)
BODIES = st.sampled_from([b"", b"x", b"hello" * 20, bytes(1025)])


@st.composite
def sends(draw: st.DrawFn) -> RemotingCommand:
    """Draw a request, often with something about it that is unusual or wrong."""
    letters = {
        "f": draw(st.sampled_from(["0", "0", "1", "4", "2048"])),
        "g": str(draw(st.integers(0, 2**40))),
        "h": str(draw(st.integers(-5, 5))),
        "j": draw(st.sampled_from(["0", "2"])),
    }
    code = draw(st.sampled_from([310, 310, 310, 320]))
    topic = draw(st.sampled_from(["T1", "T1", "T2", "missing", "%RETRY%CG", "TBW102", "a b"]))
    queue_id = draw(st.sampled_from([0, 1, 1, 3, 4, 9]))
    if code == 320:
        body = encode_batch(
            BatchMessage(draw(st.integers(-2, 2)), draw(BODIES), draw(PROPERTIES).encode())
            for _ in range(draw(st.integers(0, 4)))
        )
        body += draw(st.sampled_from([b"", b"", b"", b"\x00", bytes(30)]))
    else:
        body = draw(BODIES)
    flag = draw(st.sampled_from([0, 0, 0, FLAG_ONEWAY]))
    ext = send_ext(topic, queue_id, draw(PROPERTIES), **letters)
    if draw(st.integers(0, 20)) == 0:
        del ext[draw(st.sampled_from(["a", "c", "e", "i"]))]
    return RemotingCommand(code, opaque=draw(st.integers(-5, 2**31 - 1)), flag=flag, ext=ext, body=body)


def in_general_form(frame: bytes) -> bytes:
    """Return the same request as `frame`, written so that only the general decoder reads it."""
    ((header_start, body_start, frame_end, serialize_type),), _ = split_frames(frame, len(frame))
    header = frame[header_start:body_start]
    assert header.startswith(b'{"code":')
    return join_frame(serialize_type, b"{ " + header[1:], frame[body_start:frame_end])


def seeded_broker(monkeypatch: pytest.MonkeyPatch) -> ServedBroker:
    monkeypatch.setattr("secrets.randbits", lambda _: 7)
    config = BrokerConfig(broker_group="broker-a", node_id="n0", data_dir=Path(), max_message_bytes=1024)
    broker = make_served_broker(config, BrokerInMemory())
    for topic in ("T1", "T2"):
        broker.memory.create_topic(topic)
        broker.client("creator").send_message(topic, properties="UNIQ_KEY\x01first")
    return broker


@settings(max_examples=60, deadline=None)
@given(reads=st.lists(st.lists(sends(), min_size=1, max_size=6), min_size=1, max_size=3))
def test_both_forms_store_identical_bytes_and_give_identical_answers(reads: list[list[RemotingCommand]]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        outcomes = []
        for rewrite in (bytes, in_general_form):
            broker = seeded_broker(monkeypatch)
            client = broker.client()
            for commands in reads:
                client.feed(b"".join(rewrite(encode_command(command)) for command in commands))
                broker.settle()
            queues = {
                (queue.topic, queue.queue_id): bytes(queue.view.tail)
                for queue in broker.memory.machine.state.topic_table.queues()
            }
            answers = sorted(client.answers, key=lambda answer: (answer.opaque, repr(answer)))
            outcomes.append(
                (bytes(broker.memory.log.data), queues, answers, client.in_flight, broker.counters.as_dict())
            )
    assert outcomes[0] == outcomes[1]


def test_sends_of_many_clients_are_answered_to_each_in_its_order(make_broker: MakeBroker) -> None:
    broker = make_broker()
    clients = [broker.client(f"client/{number}") for number in range(3)]
    for number in range(12):
        command = RemotingCommand(310, opaque=number, ext=send_ext("T1", number % 2), body=b"%d" % number)
        clients[number % 3].feed(encode_command(command))
    broker.settle()
    for number, client in enumerate(clients):
        assert [answer.opaque for answer in client.answers] == list(range(number, 12, 3))
        assert client.in_flight == 0
        assert [int(answer.ext["queueOffset"]) for answer in client.answers] == [
            opaque // 2 for opaque in range(number, 12, 3)
        ]
