"""The identity of a sink's rows is the same in every attempt, in whatever order it yields them."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from dledger_spark.errors import OptionError, SourceError
from dledger_spark.identity import RowIdentities
from dledger_spark.sending import OutgoingRow, check_columns, rows_of

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
    assert list(rows_of(batch, "t")) == [
        OutgoingRow("t", b"text", "k", None, {"a": "1", "b": ""}, None),
        OutgoingRow("t", b"v", None, "red", {}, 65_537),
    ]


@pytest.mark.parametrize(
    ("columns", "hint"),
    [
        ({"value": [None]}, "value is null"),
        ({"value": [b"v"], "topic": [None]}, "topic is null"),
        ({"value": [b"v"], "topic": ["t"], "key": [b"\xff"]}, "key is not UTF-8"),
        (
            {"value": [b"v"], "topic": ["t"], "headers": [[{"key": "a", "value": b""}, {"key": "a", "value": b""}]]},
            "header 'a' twice",
        ),
    ],
)
def test_a_row_that_is_no_message_is_named(columns: dict[str, list[object]], hint: str) -> None:
    with pytest.raises(SourceError, match=hint):
        list(rows_of(pa.record_batch(columns), None))


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
    ],
)
def test_columns_of_nulls_and_other_texts_are_taken(columns: dict[str, str]) -> None:
    check_columns(columns, "t")
