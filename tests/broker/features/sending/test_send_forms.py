"""A send in the common form takes a short way: what it stores and answers is what the general way does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served_broker import MakeBroker, ServedBroker, make_served_broker, send_ext

from dledger_broker.config import BrokerConfig
from dledger_broker.testing import BrokerInMemory
from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, encode_command
from dledger_remoting.frame import join_frame, split_frames

PROPERTIES = st.lists(
    st.sampled_from(
        [
            "UNIQ_KEY\x01U1",
            "UNIQ_KEY\x01",
            'UNIQ_KEY\x01näh"\\',
            "TAGS\x01A",
            "TAGS\x01",
            "KEYS\x01k",
            "MYTAGS\x01B",
            "MY_UNIQ_KEY\x01x",
            "DELAY\x010",
            "DELAY\x013",
            "TIMER_DELAY_SEC\x015",
            "MODEL\x01y",
            "",
            "no separator",
        ]
    ),
    max_size=4,
).map("\x02".join)
BODIES = st.sampled_from([b"", b"x", b"hello" * 20, bytes(1025)])


@st.composite
def sends(draw: st.DrawFn) -> RemotingCommand:
    """A request, often with something about it that is unusual or wrong."""
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
    """The same request as `frame`, written so that only the general decoder reads it."""
    ((header_start, body_start, frame_end, serialize_type),), _ = split_frames(frame, len(frame))
    header = frame[header_start:body_start]
    assert header.startswith(b'{"code":')
    return join_frame(serialize_type, b"{ " + header[1:], frame[body_start:frame_end])


def fresh_broker(monkeypatch: pytest.MonkeyPatch) -> ServedBroker:
    monkeypatch.setattr("secrets.randbits", lambda _: 7)
    config = BrokerConfig(broker_group="broker-a", node_id="n0", data_dir=".", max_message_bytes=1024)  # type: ignore[arg-type]
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
            broker = fresh_broker(monkeypatch)
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
