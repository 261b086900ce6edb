"""The columns of a read: their names, their types for Spark and for Arrow, and what they mean.

The first eight are those of Spark's Kafka source, with the same types. Every column may be null for Spark, as there.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from .errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa


class Column(NamedTuple):
    """One column: its name, its type in Spark's DDL, and its meaning."""

    name: str
    ddl: str
    meaning: str


HEADERS: Final = "headers"
CORRUPT_RECORD: Final = "_corrupt_record"
SOURCE_TOPIC: Final = "source_topic"
"""Column of a frame to write with the topic that a row comes from. `topic` is the topic to which the row is written."""

COLUMNS: Final = (
    Column("key", "BINARY", "the message's keys as bytes, null without"),
    Column("value", "BINARY", "the body, decompressed"),
    Column("topic", "STRING", "the topic"),
    Column("partition", "INT", "the broker group's ordinal × 65536 + queue id: unique per topic"),
    Column("offset", "BIGINT", "the queue offset"),
    Column("timestamp", "TIMESTAMP", "when the leader stored the message"),
    Column("timestampType", "INT", "always 1: the time is the log's, as Kafka's `LogAppendTime`"),
    Column(HEADERS, "ARRAY<STRUCT<key: STRING, value: BINARY>>", "the application's own properties"),
    Column("broker_group", "STRING", "the broker group"),
    Column("queue_id", "INT", "the queue within its broker group"),
    Column("tags", "STRING", "the tag, null without"),
    Column("keys", "STRING", "the keys, separated by spaces, null without"),
    Column(
        "born_timestamp", "TIMESTAMP", "when the producer made the message; null if that is outside the years 1 to 9999"
    ),
    Column("born_host", "STRING", "the producer's address and port"),
    Column("store_host", "STRING", "address and port of the node that stored the message"),
    Column("message_id", "STRING", "the unique key; the offset message id if the producer made none"),
    Column("reconsume_times", "INT", "how often the message was delivered before"),
    Column("properties", "MAP<STRING, STRING>", "all properties, those of the protocol included"),
    Column("physical_offset", "BIGINT", "the byte of the group's log at which the record starts"),
    Column("term", "BIGINT", "the term of the record's entry; null in mode=queues"),
    Column("log_index", "BIGINT", "the index of the record's entry; null in mode=queues"),
    Column(
        CORRUPT_RECORD,
        "BINARY",
        "the stored body where it cannot be decoded, else null; with `badRecords=PERMISSIVE`",
    ),
)
"""All columns, in their order."""

NAMES: Final = tuple(column.name for column in COLUMNS)
_DDL: Final = {column.name: column.ddl for column in COLUMNS}


def selected_columns(columns: str | None, *, include_headers: bool, has_corrupt_record: bool) -> tuple[str, ...]:
    """Return the columns of a read: the named `columns`, else all, with `headers` only on request.

    Raises `OptionError` for an unknown or repeated name, and for `_corrupt_record` where the read does not have it.
    """
    optional = {HEADERS: include_headers, CORRUPT_RECORD: has_corrupt_record}
    if columns is None:
        return tuple(name for name in NAMES if optional.get(name, True))
    by_lower_case = {name.lower(): name for name in NAMES}
    chosen: list[str] = []
    for part in columns.split(","):
        name = by_lower_case.get(part.strip().lower())
        if name is None:
            raise OptionError("columns", columns, f"{part.strip()!r} is no column; there are {', '.join(NAMES)}")
        if name == CORRUPT_RECORD and not has_corrupt_record:
            raise OptionError("columns", columns, f"{name!r} is a column of badRecords=PERMISSIVE only")
        if name in chosen:
            raise OptionError("columns", columns, f"{name!r} is named twice")
        chosen.append(name)
    if include_headers and HEADERS not in chosen:
        raise OptionError("columns", columns, "includeHeaders is true, but headers is not among the columns")
    return tuple(chosen)


def ddl(names: tuple[str, ...]) -> str:
    """Return the schema of these columns in Spark's DDL."""
    return ", ".join(f"`{name}` {_DDL[name]}" for name in names)


def columns_table() -> str:
    """Return the table of all columns, in Markdown."""
    lines = ["| column | type | |", "|---|---|---|"]
    lines += [f"| `{column.name}` | `{column.ddl}` | {column.meaning} |" for column in COLUMNS]
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=64)
def arrow_schema(names: tuple[str, ...]) -> pa.Schema:
    """Return the Arrow schema of these columns: exactly the schema that Spark expects of a batch."""
    import pyarrow as pa

    types = {
        "BINARY": pa.binary(),
        "STRING": pa.string(),
        "INT": pa.int32(),
        "BIGINT": pa.int64(),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"),
        "MAP<STRING, STRING>": pa.map_(pa.string(), pa.string()),
        "ARRAY<STRUCT<key: STRING, value: BINARY>>": pa.list_(
            pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
        ),
    }
    return pa.schema([pa.field(name, types[_DDL[name]]) for name in names])
