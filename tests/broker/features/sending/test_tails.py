"""Tails of records: those of a batch's messages are those of single ones."""

from __future__ import annotations

from itertools import product

import pytest

from dledger_broker.features.sending.tails import RecordTails, properties_of
from dledger_broker.features.sending.targets import SendTarget
from dledger_broker.kernel.queues import TopicState
from dledger_broker.kernel.records import MessageParts
from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.errors import MessageIllegal
from dledger_remoting.ids import UniqueKeyGenerator
from dledger_remoting.properties import find_property
from dledger_remoting.topics import TopicConfig

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


def test_a_batch_with_a_delay_in_it_is_refused_though_all_others_look_alike() -> None:
    batched, target = tails()
    messages = [BatchMessage(0, b"", USUAL), BatchMessage(0, b"", b"UNIQ_KEY\x01KEY1\x02DELAY\x013")]
    assert len(messages[1].properties) == len(USUAL)
    batched.complete(USUAL, target)
    with pytest.raises(MessageIllegal, match="delay"):
        batched.batch(encode_batch(messages), target)


@pytest.mark.parametrize("region", ["", "DefaultRegion"])
@pytest.mark.parametrize("properties", [*OF_THE_SAME_SIZE, *OTHERS])
def test_a_region_is_stored_with_every_message_if_there_is_one(region: str, properties: bytes) -> None:
    made, target = tails(region)
    for _ in range(2):  # the second one finds the layout of the first
        tail = made.complete(properties, target)[0]
        assert find_property(properties_of(tail, target), b"MSG_REGION") == (region.encode() or None)
    messages = [BatchMessage(0, b"", properties)] * 2
    for _, tail, _, _ in made.batch(encode_batch(messages), target)[0]:
        assert find_property(properties_of(tail, target), b"MSG_REGION") == (region.encode() or None)
