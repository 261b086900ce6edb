"""Sending by the tasks of a write, with a producer that only remembers."""

from __future__ import annotations

from typing import Self

import pyarrow as pa
import pytest

from dledger_client import MessageQueue
from dledger_spark import sending
from dledger_spark.errors import SourceError
from dledger_spark.options import write_options
from dledger_spark.sending import RowSender, rows_of


class Remembering:
    """Takes the producer's place."""

    def __init__(self, *_: object, **__: object) -> None:
        self.sent = SENT

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is open."""

    async def send(self, topic: str, body: bytes, *, queue: MessageQueue | None = None, **_: object) -> None:
        self.sent.append((topic, body, queue))


SENT: list[tuple[str, bytes, MessageQueue | None]] = []


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """How often the broker groups were asked for their ordinals."""
    questions: list[tuple[str, ...]] = []

    def groups_by_ordinal(namesrv: tuple[str, ...], _: float) -> dict[int, str]:
        questions.append(namesrv)
        return {0: "broker-a", 1: "broker-b"}

    monkeypatch.setattr(sending, "Producer", Remembering)
    monkeypatch.setattr(sending, "groups_by_ordinal", groups_by_ordinal)
    SENT.clear()
    return questions


def send(partitions: list[int]) -> int:
    options = write_options({"namesrv": "a:1", "topic": "t"}, "batch sink")
    batch = pa.RecordBatch.from_pylist([{"value": b"%d" % number, "partition": number} for number in partitions])
    return RowSender(options, "run", 0).send([batch])


def test_rows_go_to_the_queues_that_they_name_and_the_groups_are_asked_for_once(asked: list[tuple[str, ...]]) -> None:
    partitions = [number for ordinal in (0, 65_536) for number in range(ordinal, ordinal + 300)]
    assert send(partitions) == 600
    assert {(int(body), queue.broker_group, queue.queue_id) for _, body, queue in SENT if queue is not None} == {
        (number, "broker-b" if number >= 65_536 else "broker-a", number % 65_536) for number in partitions
    }
    assert len(asked) == 1


@pytest.mark.parametrize("partition", [-1, 2 * 65_536])
def test_a_partition_of_no_broker_group_is_named(asked: list[tuple[str, ...]], partition: int) -> None:
    with pytest.raises(SourceError, match=f"a row's partition is {partition}, but no broker group has the ordinal"):
        send([partition])


HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"value": None}, "value is null"),
        ({"value": b"v", "headers": [None]}, "a header without a name: None"),
        ({"value": b"v", "headers": [{"key": None, "value": b"x"}]}, "a header without a name"),
        ({"value": b"v", "headers": [{"key": "", "value": b"x"}]}, "a header without a name"),
        ({"value": b"v", "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}]}, "header 'a' twice"),
        ({"value": b"v", "headers": [{"key": "a", "value": b"\xff"}]}, "header a is not UTF-8"),
    ],
)
def test_a_row_that_is_no_message_says_why(row: dict[str, object], words: str) -> None:
    schema = pa.schema([("value", pa.binary()), ("headers", HEADERS)])
    batch = pa.RecordBatch.from_pylist([{"headers": None} | row], schema=schema)
    with pytest.raises(SourceError, match=words):
        list(rows_of(batch, "t"))
