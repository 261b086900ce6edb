"""The identity of a sink's rows is the same in every attempt, in any order of the rows."""

from __future__ import annotations

import random
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest

from dledger_spark import windows
from dledger_spark.errors import OptionError, SourceError
from dledger_spark.identity import Origin, RowIdentities, overlapping
from dledger_spark.occurrences import Occurrences
from dledger_spark.options import WriteOptions
from dledger_spark.sending import OutgoingRow, check_columns, rows_of
from dledger_spark.windows import within_window
from dledger_spark.writer import Written, _TopicWriter

ORIGIN = {"source_topic": "string", "broker_group": "string", "queue_id": "int", "offset": "bigint"}
ROWS = [(b"a", "k"), (b"b", None), (b"a", "k"), (b"a", None), (b"ak", ""), (b"a", "k")]


def identities(rows: list[tuple[bytes, str | None]], run: str = "job 1", partition: int = 0) -> list[str]:
    made = RowIdentities(run, partition)
    return [made.next("t", body, key, None, {}, None) for body, key in rows]


def test_order_does_not_matter_and_equal_rows_stay_apart() -> None:
    first = identities(ROWS)
    assert len(set(first)) == len(ROWS)
    assert all(len(identity) == 32 for identity in first)
    for seed in range(5):
        shuffled = random.Random(seed).sample(ROWS, len(ROWS))
        assert sorted(identities(shuffled)) == sorted(first)


def test_everything_that_makes_a_row_another_row_makes_another_identity() -> None:
    variants = [
        ("job 1", 0, "t", b"x", "k", None, {}, None),
        ("job 2", 0, "t", b"x", "k", None, {}, None),
        ("job 1", 1, "t", b"x", "k", None, {}, None),
        ("job 1", 0, "u", b"x", "k", None, {}, None),
        ("job 1", 0, "t", b"y", "k", None, {}, None),
        ("job 1", 0, "t", b"xk", "", None, {}, None),
        ("job 1", 0, "t", b"x", None, "k", {}, None),
        ("job 1", 0, "t", b"x", "k", None, {"a": "b"}, None),
        ("job 1", 0, "t", b"x", "k", None, {"a": "", "b": ""}, None),
        ("job 1", 0, "t", b"x", "k", None, {}, 0),
    ]
    made = {RowIdentities(run, partition).next(*row) for run, partition, *row in variants}  # type: ignore[arg-type]
    assert len(made) == len(variants)


def made_of(partition: int, rows: list[tuple[Origin, bytes]]) -> list[str]:
    """Return the identities of the rows of a task."""
    of_task = RowIdentities("job 1", partition)
    return [of_task.next("u", body, None, None, {}, None, origin) for origin, body in rows]


def test_a_row_with_an_origin_has_the_same_identity_in_every_task() -> None:
    rows = [(Origin("t", "broker-a", 0, offset), body) for offset in (1, 2) for body in (b"x", b"x", b"y")]
    whole = made_of(0, rows)
    assert len(set(whole)) == len(rows), "what explode makes of one offset stays apart"
    assert sorted(made_of(7, rows[3:]) + made_of(8, rows[:3][::-1])) == sorted(whole)
    others = [Origin("s", "broker-a", 0, 1), Origin("t", "broker-b", 0, 1), Origin("t", "broker-a", 1, 1)]
    assert len({*whole, *made_of(0, [(origin, b"x") for origin in others])}) == len(rows) + len(others)


def test_equal_rows_of_an_offset_are_kept_in_a_task_and_completed_by_a_rewrite() -> None:
    one, two = (Origin("t", "broker-a", 0, offset) for offset in (1, 2))
    frame = [(one, b"x"), (two, b"x")]
    apart = {identity for partition in range(2) for identity in made_of(partition, frame)}
    assert len(apart) == 2, "a union with itself, each half in a task of its own"
    together = {*made_of(0, [(one, b"x")] * 2), *made_of(1, [(two, b"x")] * 2)}
    assert len(together) == 4
    assert apart < together, "what is stored already is not stored again"


@pytest.mark.parametrize(
    ("taken", "low", "told"), [(0, 0, False), (3, 0, True), (3, 5, False)], ids=["all new", "some known", "no overlap"]
)
def test_only_rows_possibly_lost_between_tasks_are_logged(
    taken: int, low: int, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    queue = ("t", "broker-a", 0)
    results = [Written(9, {queue: (0, 4)}), Written(9, {queue: (low, 9)}, taken_for_others=taken)]
    _TopicWriter.committed(Mock(), results)  # type: ignore[arg-type]
    lines = ["rows_of_one_offset_in_several_tasks rows=3" in record.message for record in caplog.records]
    assert lines == [True] * told


def test_tasks_with_overlapping_offsets_are_detected() -> None:
    queue = ("t", "broker-a", 0)
    assert overlapping([{queue: (0, 4)}, {queue: (5, 9), ("t", "broker-b", 0): (0, 9)}]) is None
    assert overlapping([{queue: (0, 4)}, {queue: (9, 9)}, {queue: (4, 5)}]) == queue


def test_occurrences_beyond_the_memory_limit_are_counted_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/nowhere")
    seen, keys = Occurrences(max_in_memory=3), [b"%d" % (number % 7) for number in range(35)]
    assert [seen.next(key) for key in keys] == [number // 7 + 1 for number in range(35)]
    assert len(list(tmp_path.iterdir())) == 1
    seen.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "has_identity", "window_s", "expected_s", "told"),
    [
        (None, True, 120, 30, None),
        (None, False, 120, 30, None),
        (60.0, True, 120, 60, None),
        (120.0, True, 120, 60, "delivery_timeout_cut"),
        (120.0, False, 120, 120, None),
        (None, True, 0, 30, "nothing_is_remembered"),
    ],
)
def test_no_message_is_tried_for_longer_than_half_of_the_window(
    given: float | None,
    has_identity: bool,
    window_s: float,
    expected_s: float,
    told: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With both limits at two minutes, retries stored 2,020 messages for 1,000 rows."""
    monkeypatch.setattr(windows, "window_of", lambda _: window_s)
    options = WriteOptions(("a:1",), "t", "p", "job", given)
    assert within_window(options, has_identity=has_identity).delivery_timeout_s == expected_s
    assert [told in record.message for record in caplog.records] == ([True] if told else [])


def test_rows_become_messages() -> None:
    headers = pa.array(
        [[{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    batch = pa.record_batch(
        {
            "key": pa.array([b"k", None], pa.binary()),
            "value": pa.array(["text", "v"]),
            "tags": pa.array([None, "red"]),
            "headers": headers,
            "partition": pa.array([None, 65_537], pa.int32()),
            "offset": pa.array([1, 2]),
        }
    )
    rows = [
        OutgoingRow("t", b"text", "k", None, {"a": "1", "b": ""}, None),
        OutgoingRow("t", b"v", None, "red", {}, 65_537),
    ]
    assert list(rows_of(batch, "t")) == rows
    for name, column in (("source_topic", ["s", "s"]), ("broker_group", ["a", "b"]), ("queue_id", [3, 4])):
        batch = batch.append_column(name, pa.array(column))
    origins = [Origin("s", "a", 3, 1), Origin("s", "b", 4, 2)]
    assert [row.origin for row in rows_of(batch, "t")] == origins
    nulls = batch.set_column(batch.schema.names.index("offset"), "offset", pa.array([1, None]))
    with pytest.raises(SourceError, match="a row's origin has a null"):
        list(rows_of(nulls, "t"))


@pytest.mark.parametrize(
    ("columns", "topic", "option"),
    [
        ({"key": "binary"}, "t", "columns"),
        ({"value": "binary"}, None, "topic"),
        ({"value": "string", "colour": "int"}, "t", "columns"),
        ({"value": "int"}, "t", "columns"),
        ({"value": "void"}, "t", "columns"),
        ({"value": "binary", "key": "bigint"}, "t", "columns"),
        ({"value": "binary", "topic": "binary"}, None, "columns"),
        ({"value": "binary", "partition": "string"}, "t", "columns"),
        ({"value": "binary", "headers": "map<string,binary>"}, "t", "columns"),
        ({"value": "binary", "tags": "array<string>"}, "t", "columns"),
        ({"value": "binary", "source_topic": "string"}, "t", "columns"),
        ({"value": "binary", **ORIGIN, "offset": "string"}, "t", "columns"),
    ],
)
def test_columns_that_make_no_messages_are_refused(columns: dict[str, str], topic: str | None, option: str) -> None:
    with pytest.raises(OptionError) as raised:
        check_columns(columns, topic)
    assert raised.value.name == option


@pytest.mark.parametrize(
    "columns",
    [
        dict.fromkeys(("key", "topic", "partition", "headers", "tags"), "void") | {"value": "string"},
        {
            "key": "string",
            "value": "varchar(9)",
            "topic": "string collate UNICODE",
            "partition": "bigint",
            "headers": "array<struct<key:string,value:string>>",
            "offset": "bigint",
        },
        {"value": "binary", **ORIGIN},
    ],
)
def test_columns_of_nulls_and_other_texts_are_taken(columns: dict[str, str]) -> None:
    check_columns(columns, "t")
