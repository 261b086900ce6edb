"""Batches: refused by their lengths if no unit holds them, otherwise prepared in slices, as single messages are."""

from __future__ import annotations

from itertools import product
from struct import pack

import pytest
from served_broker import FakeClient, ServedBroker, assert_refused, send_ext, submit

from dledger_broker.features.sending import large_batches
from dledger_broker.features.sending.send import SendRequests
from dledger_broker.features.sending.tails import SLICE_MESSAGES, RecordTails, properties_of
from dledger_broker.features.sending.targets import SendTarget
from dledger_broker.kernel.queues import TopicState
from dledger_broker.kernel.records import MessageParts
from dledger_remoting.batch import BatchMessage, encode_batch, split_batch
from dledger_remoting.errors import MessageIllegal
from dledger_remoting.ids import UniqueKeyGenerator
from dledger_remoting.properties import find_property
from dledger_remoting.topics import TopicConfig

SMALLEST = pack(">iiiiiH", 22, 0, 0, 0, 0, 0)


def varied(count: int) -> bytes:
    """Return messages of which no two look alike."""
    return encode_batch(BatchMessage(n, b"", b"TAGS\x01%d\x02" % n) for n in range(count))


@pytest.mark.parametrize("body", [SMALLEST * 180_000, SMALLEST * 100_000 + varied(1)], ids=["alike", "varied"])
def test_a_batch_too_large_for_a_unit_is_refused_before_its_messages_are_prepared(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    def make(*_: object) -> None:
        raise AssertionError("a message was prepared")

    monkeypatch.setattr(RecordTails, "complete", make)
    assert_refused(client.call(320, send_ext("T1", m="true"), body), 13, "send fewer at once")


def test_a_batch_is_split_only_up_to_the_limit_of_messages() -> None:
    assert len(split_batch(SMALLEST * 3, 3)) == 3
    for body in (SMALLEST * 4, SMALLEST * 3 + varied(1), SMALLEST * 3 + b"rubbish that nobody comes to"):
        with pytest.raises(MessageIllegal, match="more than 3 messages"):
            split_batch(body, 3)


def test_a_batch_of_many_messages_is_stored_whole_and_its_turns_are_short(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices: list[int] = []
    whole = RecordTails.one_by_one

    def one_by_one(self: RecordTails, split: list[tuple[int, bytes, bytes]], *target: object) -> object:
        slices.append(len(split))
        return whole(self, split, *target)  # type: ignore[arg-type]

    monkeypatch.setattr(RecordTails, "one_by_one", one_by_one)
    broker.memory.node.log.segment_bytes = 4 << 20  # the records of one batch lie in one segment
    count = 2 * SLICE_MESSAGES + 7
    large = client.send(320, send_ext("T1", m="true"), varied(count))
    second = submit(client, 320, send_ext("T1", m="true"), varied(SLICE_MESSAGES + 1))
    assert client.answered(large).code == client.answered(second).code == 0
    assert slices == [SLICE_MESSAGES, SLICE_MESSAGES, 7, SLICE_MESSAGES, 1]
    queue = broker.memory.machine.state.topics["T1"].queue(0)
    assert queue.staged_offset == count + SLICE_MESSAGES + 1


def test_an_illegal_message_late_in_a_large_batch_refuses_the_whole_batch(client: FakeClient) -> None:
    body = varied(SLICE_MESSAGES) + encode_batch([BatchMessage(0, b"", b"DELAY\x013\x02")])
    assert client.call(320, send_ext("T1", m="true"), body).code == 13
    assert client.broker.memory.machine.state.topics["T1"].queue(0).staged_offset == 0


def test_large_batches_that_wait_have_a_limit(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    body = varied(SLICE_MESSAGES + 1)
    monkeypatch.setattr(large_batches, "MAX_WAITING_BYTES", len(body))
    first, second = (client.send(320, send_ext("T1", m="true"), body) for _ in range(2))
    client.broker.settle()
    assert [client.answered(opaque).code for opaque in (first, second)] == [0, 2]


def test_a_stopping_node_answers_the_large_batches_that_wait(broker: ServedBroker, client: FakeClient) -> None:
    waiting = client.send(320, send_ext("T1", m="true"), varied(SLICE_MESSAGES + 1))
    broker.service.parts[SendRequests].close()
    assert client.answered(waiting).code == 14


# ---- tails of records: the message of a batch has the same tail as a single message


USUAL = b"UNIQ_KEY\x01KEY1\x02TAGS\x01A\x02"
OF_THE_SAME_SIZE = [
    USUAL,
    b"UNIQ_KEY\x01KEY2\x02TAGS\x01A\x02",
    b"UNIQ_KEY\x01KEY3\x02TAGS\x01B\x02",
    b"UNIQ_KEY\x01K\x02\x01v\x02TAGS\x01A\x02",
    b"UNIQ_KEY\x01\x02a\x01b\x02TAGS\x01A\x02",
    b"UNIQ_KE2\x01KEY4\x02TAGS\x01A\x02",
    b"UNIQ_KEY\x01KEY5\x02TAGS\x01AB",
]
OTHERS = [b"", b"UNIQ_KEY\x01LONGER\x02TAGS\x01A\x02"]


class NumberedKeys(UniqueKeyGenerator):
    def __init__(self) -> None:
        self.count = 0

    def next(self, wall_ms: int) -> str:
        self.count += 1
        return f"MADE{self.count}"


def tails(region: str = "") -> tuple[RecordTails, SendTarget]:
    return RecordTails("C", region, NumberedKeys(), lambda: 0), SendTarget(TopicState(TopicConfig("T"), 0))


@pytest.mark.parametrize("third", [*OF_THE_SAME_SIZE, *OTHERS])
def test_a_batch_is_stored_like_single_messages(third: bytes) -> None:
    for first, second in product([*OF_THE_SAME_SIZE, *OTHERS], repeat=2):
        messages = [BatchMessage(number, b"%d" % number, text) for number, text in enumerate((first, second, third))]
        single, target = tails()
        expected: list[MessageParts] = []
        for message in messages:
            tail, _, tag_code, has_own_key = single.complete(message.properties, target)
            assert has_own_key != (b"MADE" in tail)
            expected.append((message.body, tail, message.flag, tag_code))
        for known in (False, True):
            batched, target = tails()
            if known:
                batched.complete(USUAL, target)
            with_own_keys = not any(b"MADE" in tail for _, tail, _, _ in expected)
            assert batched.batch(encode_batch(messages), target) == (expected, with_own_keys)


def test_a_batch_with_a_delayed_message_among_alike_messages_is_refused() -> None:
    batched, target = tails()
    messages = [BatchMessage(0, b"", USUAL), BatchMessage(0, b"", b"UNIQ_KEY\x01KEY1\x02DELAY\x013")]
    assert len(messages[1].properties) == len(USUAL)
    batched.complete(USUAL, target)
    with pytest.raises(MessageIllegal, match="delay"):
        batched.batch(encode_batch(messages), target)


@pytest.mark.parametrize("region", ["", "DefaultRegion"])
@pytest.mark.parametrize("properties", [*OF_THE_SAME_SIZE, *OTHERS])
def test_a_configured_region_is_stored_with_every_message(region: str, properties: bytes) -> None:
    made, target = tails(region)
    for _ in range(2):  # the second time finds the layout of the first
        tail = made.complete(properties, target)[0]
        assert find_property(properties_of(tail, target), b"MSG_REGION") == (region.encode() or None)
    messages = [BatchMessage(0, b"", properties)] * 2
    for _, tail, _, _ in made.batch(encode_batch(messages), target)[0]:
        assert find_property(properties_of(tail, target), b"MSG_REGION") == (region.encode() or None)
