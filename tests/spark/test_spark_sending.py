"""Sends by the tasks of a write, with a producer that only records."""

from __future__ import annotations

from typing import Any, Self

import pyarrow as pa
import pytest

from dledger_client import MessageQueue, SendResult
from dledger_spark import sending
from dledger_spark.errors import NotRememberedError, SourceError
from dledger_spark.options import write_options
from dledger_spark.sending import RowSender, rows_of


class Remembering:
    """Producer that records instead of sending."""

    def __init__(self, *_: object, **__: object) -> None:
        self.sent = SENT

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing."""

    async def send(self, topic: str, body: bytes, *, queue: MessageQueue | None = None, **_: object) -> SendResult:
        self.sent.append((topic, body, queue))
        group, queue_id = ("broker-a", 0) if queue is None else queue[1:]
        told: dict[str, Any] = {**TOLD.get(body, {"remembered": True})}
        return SendResult("K", "0A", topic, group, queue_id, len(self.sent), **told)


TOLD: dict[bytes, dict[str, bool]] = {}
"""Fields of the results of some sends, by body. All other results say `remembered`."""
SENT: list[tuple[str, bytes, MessageQueue | None]] = []


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Record each request for the ordinals of the broker groups."""
    questions: list[tuple[str, ...]] = []

    def groups_by_ordinal(namesrv: tuple[str, ...], _: float) -> dict[int, str]:
        questions.append(namesrv)
        return {0: "broker-a", 1: "broker-b"}

    monkeypatch.setattr(sending, "Producer", Remembering)
    monkeypatch.setattr(sending, "groups_by_ordinal", groups_by_ordinal)
    SENT.clear()
    TOLD.clear()
    return questions


def send(partitions: list[int]) -> int:
    options = write_options({"namesrv": "a:1", "topic": "t"}, "batch sink")
    batch = pa.RecordBatch.from_pylist([{"value": b"%d" % number, "partition": number} for number in partitions])
    return RowSender(options, "run", 0).send([batch])


def test_rows_go_to_their_named_queues_and_groups_are_looked_up_once(asked: list[tuple[str, ...]]) -> None:
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


FORGOTTEN = {"remembered": False}


def sender(run: str | None, attempt: int = 0) -> tuple[RowSender, pa.RecordBatch]:
    options = write_options({"namesrv": "a:1", "topic": "t"}, "batch sink")
    rows = [{"value": b"%d" % number, "partition": 0} for number in range(3)]
    return RowSender(options, run, 0, attempt), pa.RecordBatch.from_pylist(rows)


def test_rows_that_are_not_remembered_are_counted_while_nothing_is_repeated(asked: list[tuple[str, ...]]) -> None:
    TOLD.update({b"0": FORGOTTEN, b"2": FORGOTTEN})
    one, batch = sender("run")
    assert (one.send([batch]), one.not_remembered) == (3, 2)
    one, batch = sender(None)
    assert (one.send([batch]), one.not_remembered) == (3, 0)


@pytest.mark.parametrize(
    ("attempt", "told", "why"),
    [
        (1, {b"1": FORGOTTEN}, "the task runs again"),
        (0, {b"0": {"remembered": True, "repeated": True}, b"1": FORGOTTEN}, "the job or micro-batch ran before"),
        (0, {b"0": FORGOTTEN, b"2": {"remembered": True, "repeated": True}}, "the job or micro-batch ran before"),
        (0, {b"1": FORGOTTEN | {"perhaps_twice": True}}, "an attempt to send it had no answer"),
    ],
)
def test_a_repetition_of_a_row_that_is_not_remembered_fails_by_name(
    asked: list[tuple[str, ...]], attempt: int, told: dict[bytes, dict[str, bool]], why: str
) -> None:
    TOLD.update(told)
    one, batch = sender("run", attempt)
    with pytest.raises(NotRememberedError, match=f"topic 't' may be stored twice on broker-a: {why}"):
        one.send([batch])


HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"value": None}, "value is null"),
        ({"value": b"v", "topic": None}, "topic is null"),
        ({"value": b"v", "key": b"\xff"}, "key is not UTF-8"),
        ({"value": b"v", "headers": [None]}, "a header without a name: None"),
        ({"value": b"v", "headers": [{"key": None, "value": b"x"}]}, "a header without a name"),
        ({"value": b"v", "headers": [{"key": "", "value": b"x"}]}, "a header without a name"),
        ({"value": b"v", "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}]}, "header 'a' twice"),
        ({"value": b"v", "headers": [{"key": "a", "value": b"\xff"}]}, "header a is not UTF-8"),
    ],
)
def test_a_row_that_is_no_message_says_why(row: dict[str, object], words: str) -> None:
    schema = pa.schema([("value", pa.binary()), ("topic", pa.string()), ("key", pa.binary()), ("headers", HEADERS)])
    batch = pa.RecordBatch.from_pylist([{"topic": "t", "key": None, "headers": None} | row], schema=schema)
    with pytest.raises(SourceError, match=words):
        list(rows_of(batch, None))
