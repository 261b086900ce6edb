"""Stories about the pipeline: each raises `AssertionError` if the promise in its name is broken."""

from __future__ import annotations

from itertools import chain
from unittest.mock import Mock

from pyspark.sql.streaming.datasource import ReadAllAvailable

from dledger_client import SendResult
from dledger_remoting.hosts import HostAddress
from dledger_remoting.record import MessageRecord, encode_record
from dledger_sim.spark.made_up import QUEUE, MadeUpCluster, read_to, stream, without_pauses
from dledger_spark import queues, streaming, uncommon
from dledger_spark.entries import Span
from dledger_spark.errors import DataLossError, NotRememberedError, OtherGroupError
from dledger_spark.identity import Origin, RowIdentities
from dledger_spark.options import WriteOptions
from dledger_spark.partitions import QueueRange
from dledger_spark.sending import RowSender
from dledger_spark.wire import Response

_HOST = HostAddress("127.0.0.1", 10911)
_COMPRESSED = 1


def each_offset_is_read_once() -> None:
    """Check that micro-batches and restarts follow each other without gaps and repetitions."""
    cluster = MadeUpCluster()
    with without_pauses(cluster):
        offset: dict[str, object] = stream().initialOffset()
        found: list[range] = []
        for end in (7, 7, 12):
            cluster.end = end
            offset, parts = read_to(stream(), offset)
            found += parts
    assert list(chain.from_iterable(found)) == list(range(12)), found


def a_query_that_ends_waits_for_no_minimum() -> None:
    """Check that `availableNow` reads the existing messages even if they are fewer than `minOffsetsPerTrigger`."""
    cluster = MadeUpCluster()
    with without_pauses(cluster):
        reader = stream(minOffsetsPerTrigger="100")
        start = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        cluster.end = 9
        _, parts = read_to(reader, start)
    assert parts == [range(5)], parts


def a_second_founding_is_refused() -> None:
    """Check that a checkpoint belongs to one broker group, and not to another of the same name."""
    cluster = MadeUpCluster()
    cluster.identity = "a" * 32
    with without_pauses(cluster):
        offset, _ = read_to(first := stream(), first.initialOffset())
        cluster.identity, cluster.end = "b" * 32, 9
        try:
            read_to(stream(), offset)
        except OtherGroupError:
            return
    raise AssertionError("the other group was read")


def what_retention_took_is_told() -> None:
    """Check that trimmed offsets fail a stream without the option to continue."""
    cluster = MadeUpCluster()
    with without_pauses(cluster):
        offset = stream().initialOffset()
        cluster.first, cluster.end = 3, 9
        try:
            read_to(stream(), offset)
        except DataLossError:
            return
    raise AssertionError("offsets 0 to 3 are lost without a word")


def no_queue_waits_for_busier_ones() -> None:
    """Check that a small queue has a share in each micro-batch, and that no micro-batch exceeds its limit."""
    backlog = {QUEUE: 10**6, QUEUE._replace(queue_id=1): 1}
    shares = streaming.proportional_shares(backlog, 10)
    assert list(shares.values()) == [9, 1], shares


def equal_rows_of_one_task_stay_apart() -> None:
    """Check that rows are numbered by content, so that equal rows are not lost."""
    origin = Origin("t", "broker-a", 0, 1)
    identities = RowIdentities("job", 0)
    keys = {identities.next("u", b"x", None, None, {}, None, origin) for _ in range(3)}
    assert len(keys) == 3, keys


def a_row_is_the_same_in_whichever_task() -> None:
    """Check that a repetition in other slices is recognised, and that a row of another offset is a different row."""
    one, two = (Origin("t", "broker-a", 0, offset) for offset in (1, 2))

    def key(partition: int, origin: Origin) -> str:
        return RowIdentities("job", partition).next("u", b"x", None, None, {}, None, origin)

    assert key(0, one) == key(7, one), "the task is part of the identity"
    assert key(0, one) != key(0, two), "the offset is no part of the identity"


def a_repetition_that_is_not_remembered_fails() -> None:
    """Check that a repeated task does not silently store a row twice."""
    sender = RowSender(WriteOptions(("a:1",), "t", "p", "job", None), "run", 0, attempt=1)
    try:
        sender.check_remembered(SendResult("K", "0A", "t", "broker-a", 0, 0, remembered=False))
    except NotRememberedError:
        return
    raise AssertionError("a row was stored twice without a word")


def rot_is_no_bad_record() -> None:
    """Check that a compressed body with a wrong CRC is never dropped or null."""
    record = bytearray(_record(b"no stream", _COMPRESSED))
    record[uncommon.HEAD_BYTES] ^= 1
    ((_, _, notes),) = uncommon.common_layout(bytes(record), [Span(0, len(record))], {b"t"}, reads_bodies=True)
    (undecoded,) = notes.undecoded.values()
    assert not undecoded.is_bad, "rotten bytes count as what a producer sent"


def a_rotten_record_is_not_taken() -> None:
    """Check that `mode=queues` verifies each record's CRC."""
    cluster = MadeUpCluster()
    cluster.end = 1
    with without_pauses(cluster):
        reader = stream()
        start = reader.initialOffset()
        (part,) = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    assert isinstance(part, QueueRange)
    record = bytearray(_record(b"a body", 0))
    record[uncommon.HEAD_BYTES] ^= 1
    answer = Response(0, {"nextBeginOffset": "1"}, "", bytes(record))
    refusal = queues._RangeReader(part, Mock())._refusal(answer)  # noqa: SLF001
    assert refusal is not None, "a rotten record was taken"


def _record(body: bytes, sys_flag: int) -> bytes:
    return encode_record(
        MessageRecord(
            topic="t",
            queue_id=0,
            queue_offset=0,
            physical_offset=0,
            body=body,
            sys_flag=sys_flag,
            born_timestamp=1,
            born_host=_HOST,
            store_timestamp=1,
            store_host=_HOST,
        )
    )
