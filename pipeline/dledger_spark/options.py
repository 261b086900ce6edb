"""Parser of the options of a read or write. Case does not matter in names and words, as everywhere in Spark.

Options that are not in `dledger_spark.declared_options.OPTIONS` are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from dledger_remoting.errors import SubscriptionParseFailed
from dledger_remoting.filters.sql92 import SqlFilter
from dledger_remoting.hosts import split_host_port
from dledger_remoting.name_limits import MAX_PIN_NAME_BYTES

from .declared_options import OPTIONS
from .errors import OptionError, UnknownOptionError
from .offsets import EARLIEST, LATEST, MAX_NUMBER, QueueNumbers
from .schema import selected_columns
from .throttle import MIN_REQUEST_BYTES
from .wanted import RowFilter, is_broker_written

Kind: TypeAlias = Literal["batch", "stream", "batch sink", "stream sink"]
BadRecords: TypeAlias = Literal["FAILFAST", "PERMISSIVE", "DROPMALFORMED"]
Position: TypeAlias = int | QueueNumbers
"""Start or end of a read: `EARLIEST`, `LATEST`, or a number for every queue."""

_ROLES: Final = {
    "follower": "follower",
    "learner": "learner",
    "any": "follower,learner,leader",
    "leader": "leader",
}
BAD_RECORDS: Final[dict[str, BadRecords]] = {
    "failfast": "FAILFAST",
    "permissive": "PERMISSIVE",
    "dropmalformed": "DROPMALFORMED",
}
JAVA_BLANKS: Final = "".join(map(chr, range(33)))
"""Characters that brokers strip from a tag, fewer than `str.strip` does."""
MAX_TIMEOUT_S: Final = 86_400.0
DEFAULT_MIN_BYTES_PER_SECOND: Final = 100_000
"""Default minimum rate of a replica's answers. Any usable link is much faster, a stalled replica is slower."""
_BY_LOWER_CASE: Final = {option.name.lower(): option for option in OPTIONS}
_SPARK_OPTIONS: Final = ("path", "checkpointlocation")
"""Options of Spark itself, which it passes to sinks as well."""
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
_UNIT_SECONDS: Final = {None: 0.001, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics to read, or queues of them: exactly one of the three fields is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read, checked. Times are ms since 1970, durations seconds."""

    namesrv: tuple[str, ...]
    subscription: Subscription
    mode: Literal["segments", "queues", "auto"]
    read_from: str
    read_timeout_s: float
    min_bytes_per_second: int
    max_bytes_per_second: int | None
    pin_lease_ms: int
    pin: str | None
    starting: Position
    ending: Position
    starting_times: int | QueueNumbers | None
    ending_times: int | QueueNumbers | None
    latest_without_time: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_s: float
    fail_on_data_loss: bool
    bad_records: BadRecords
    columns: tuple[str, ...]
    push_down_filters: bool
    tags: frozenset[str] | None
    sql: str | None
    group_id: str | None

    @property
    def roles(self) -> str:
        """The roles that a replica may have, as range reads name them."""
        return _ROLES[self.read_from]

    def with_columns(self, names: Sequence[str]) -> ReadOptions:
        """Return the same options for columns with these names, of the user's schema or by the option `columns`."""
        has_corrupt_record = self.bad_records == "PERMISSIVE"
        chosen = selected_columns(",".join(names), include_headers=False, has_corrupt_record=has_corrupt_record)
        return replace(self, columns=chosen)

    @property
    def row_filter(self) -> RowFilter:
        """The filter that the options `tags` and `sql` make."""
        return RowFilter(tags=self.tags, sql=self.sql)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write, checked."""

    namesrv: tuple[str, ...]
    topic: str | None
    producer_group: str
    job_id: str | None
    delivery_timeout_s: float | None
    """None: `windows.within_window` sets a quarter of the brokers' window."""
    max_rows_per_second: int | None = None


def require_known(options: Iterable[str]) -> None:
    """Raise `UnknownOptionError` for a name that is no option of reads or writes."""
    for name in options:
        if name.lower() not in {*_BY_LOWER_CASE, *_SPARK_OPTIONS}:
            raise UnknownOptionError(name, f"no option; there are {', '.join(option.name for option in OPTIONS)}")


class _RawOptions:
    """The options as the user gave them, by their declared names.

    Raises `OptionError` for an option of another kind, `UnknownOptionError` for any other name.
    """

    def __init__(self, options: Mapping[str, str], kind: Kind) -> None:
        self._values: dict[str, str] = {}
        self.kind = kind
        for key, value in options.items():
            option = _BY_LOWER_CASE.get(key.lower())
            if option is None or kind not in option.kinds:
                names = ", ".join(option.name for option in OPTIONS if kind in option.kinds)
                allowed = f"not an option of a {kind}; there are {names}"
                raise UnknownOptionError(key, allowed) if option is None else OptionError(key, value, allowed)
            self._values[option.name] = value

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def error(self, name: str, allowed: str) -> OptionError:
        return OptionError(name, self._values.get(name), allowed)

    def one_of(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        value = self._values.get(name, default).lower()
        if value not in allowed:
            raise self.error(name, f"allowed are {', '.join(allowed)}")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        return self.one_of(name, str(default).lower(), ("true", "false")) == "true"

    def integer(self, name: str, minimum: int) -> int | None:
        text = self._values.get(name)
        if text is None:
            return None
        try:
            value = int(text)
        except ValueError:
            raise self.error(name, f"allowed are integers from {minimum} on") from None
        if value < minimum:
            raise self.error(name, f"allowed are integers from {minimum} on")
        if value > MAX_NUMBER:
            raise self.error(name, f"allowed are integers up to {MAX_NUMBER}")
        return value

    def seconds(self, name: str, default_s: float, maximum_s: float = MAX_TIMEOUT_S) -> float:
        text = self._values.get(name)
        if text is None:
            return default_s
        match = _DURATION.fullmatch(text.strip().lower())
        value = -1.0 if match is None else int(match[1]) * _UNIT_SECONDS[match[2]]
        if not 0 <= value <= maximum_s:
            raise self.error(name, f"allowed are durations such as 500ms, 30s or 10m, up to {maximum_s:g} s")
        return value

    def name_servers(self) -> tuple[str, ...]:
        text = self._values.get("namesrv", "")
        addresses = tuple(part.strip() for part in re.split("[;,]", text) if part.strip())
        for address in addresses:
            try:
                split_host_port(address)
            except ValueError as error:
                raise self.error("namesrv", f"{address!r}: {error}") from None
        if not addresses:
            raise self.error("namesrv", "required: the name servers' addresses, host:port separated by ';'")
        return addresses

    def exclusive(self, *names: str) -> None:
        present = [name for name in names if name in self]
        if len(present) > 1:
            raise self.error(present[0], f"contradicts {present[1]!r}: give one of them")


_MODES: Final[Mapping[str, Literal["segments", "queues", "auto"]]] = {
    "segments": "segments",
    "queues": "queues",
    "auto": "auto",
}


def read_options(options: Mapping[str, str], kind: Literal["batch", "stream"]) -> ReadOptions:
    """Return the checked options of a read. Raises `OptionError` with the option, its value and the allowed values."""
    raw = _RawOptions(options, kind)
    is_batch = kind == "batch"
    name_servers = raw.name_servers()
    mode = raw.one_of("mode", "segments" if is_batch else "queues", ("segments", "queues", "auto"))
    if mode == "segments" and not is_batch:
        raise raw.error(
            "mode", "streams read queue by queue unless mode=auto chooses slices: allowed are queues and auto"
        )
    if mode == "auto" and is_batch:
        raise raw.error("mode", "only streams choose: allowed are segments and queues")
    if mode != "queues" and "maxRecordsPerPartition" in raw:
        raise raw.error("maxRecordsPerPartition", "slices of the log are cut by bytes: allowed with mode=queues only")
    for pinning in ("pin", "pinLease"):
        if mode != "segments" and pinning in raw:
            raise raw.error(pinning, "a read queue by queue pins nothing: allowed with mode=segments only")
    raw.exclusive("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
    raw.exclusive("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    raw.exclusive("groupId", "groupIdPrefix")
    read_timeout_s = raw.seconds("readTimeout", 60.0)
    if read_timeout_s == 0:
        raise raw.error("readTimeout", "allowed are durations above 0")
    min_rate = raw.integer("minBytesPerSecond", 0)
    minimum, maximum = raw.integer("minOffsetsPerTrigger", 1), raw.integer("maxOffsetsPerTrigger", 1)
    if minimum is not None and maximum is not None and minimum > maximum:
        raise raw.error("minOffsetsPerTrigger", f"more than maxOffsetsPerTrigger, which is {maximum}")
    if "maxTriggerDelay" in raw and minimum is None:
        raise raw.error("maxTriggerDelay", "without effect unless minOffsetsPerTrigger is given")
    starts, ends = raw.integer("startingTimestamp", 0), raw.integer("endingTimestamp", 0)
    if starts is not None and ends is not None and starts > ends:
        raise raw.error("startingTimestamp", f"after endingTimestamp, which is {ends}")
    pin = raw.text("pin")
    if pin is not None and not 0 < len(pin.encode()) <= MAX_PIN_NAME_BYTES:
        raise raw.error("pin", f"must not be empty, and have at most {MAX_PIN_NAME_BYTES} bytes")
    subscription = _parse_subscription(raw)
    bad_records = BAD_RECORDS[raw.one_of("badRecords", "failfast", tuple(BAD_RECORDS))]
    return ReadOptions(
        namesrv=name_servers,
        subscription=subscription,
        mode=_MODES[mode],
        read_from=raw.one_of("readFrom", "follower", tuple(_ROLES)),
        read_timeout_s=read_timeout_s,
        min_bytes_per_second=DEFAULT_MIN_BYTES_PER_SECOND if min_rate is None else min_rate,
        max_bytes_per_second=raw.integer("maxBytesPerSecond", MIN_REQUEST_BYTES),
        pin_lease_ms=round(raw.seconds("pinLease", 600.0, 3600.0) * 1000),
        pin=pin,
        starting=_parse_position(raw, "startingOffsets", EARLIEST if is_batch else LATEST),
        ending=_parse_position(raw, "endingOffsets", LATEST),
        starting_times=_parse_times(raw, "startingTimestamp", "startingOffsetsByTimestamp"),
        ending_times=_parse_times(raw, "endingTimestamp", "endingOffsetsByTimestamp"),
        latest_without_time=raw.one_of("startingOffsetsByTimestampStrategy", "error", ("error", "latest")) == "latest",
        min_partitions=raw.integer("minPartitions", 1),
        max_records_per_partition=raw.integer("maxRecordsPerPartition", 1),
        max_offsets_per_trigger=maximum,
        min_offsets_per_trigger=minimum,
        max_trigger_delay_s=raw.seconds("maxTriggerDelay", 900.0),
        fail_on_data_loss=raw.boolean("failOnDataLoss", default=True),
        bad_records=bad_records,
        columns=selected_columns(
            raw.text("columns"),
            include_headers=raw.boolean("includeHeaders", default=False),
            has_corrupt_record=bad_records == "PERMISSIVE",
        ),
        push_down_filters=raw.boolean("pushDownFilters", default=False),
        tags=_parse_tags(raw),
        sql=_parse_sql(raw),
        group_id=_parse_group_id(raw, subscription),
    )


def means_a_stream(options: Mapping[str, str]) -> bool:
    """Return True if one of the options is for streaming reads only."""
    found = (_BY_LOWER_CASE.get(name.lower()) for name in options)
    return any(option is not None and option.kinds == ("stream",) for option in found)


def write_options(options: Mapping[str, str], kind: Literal["batch sink", "stream sink"]) -> WriteOptions:
    """Return the checked options of a write. Raises `OptionError`."""
    without_sparks = {key: value for key, value in options.items() if key.lower() not in _SPARK_OPTIONS}
    raw = _RawOptions(without_sparks, kind)
    timeout_s = raw.seconds("deliveryTimeout", 0.0) if "deliveryTimeout" in raw else None
    if timeout_s == 0:
        raise raw.error("deliveryTimeout", "allowed are durations above 0")
    for name in ("topic", "jobId", "producerGroup"):
        if raw.text(name) == "":
            raise raw.error(name, "must not be empty")
    group = raw.text("producerGroup") or "spark-sink"
    return WriteOptions(
        raw.name_servers(),
        raw.text("topic"),
        group,
        raw.text("jobId"),
        timeout_s,
        raw.integer("maxRowsPerSecond", 1),
    )


def _parse_subscription(raw: _RawOptions) -> Subscription:
    names = ("subscribe", "subscribePattern", "assign")
    raw.exclusive(*names)
    topics = raw.text("subscribe")
    pattern = raw.text("subscribePattern")
    assign = raw.text("assign")
    if topics is not None:
        parts = tuple(dict.fromkeys(part.strip() for part in topics.split(",") if part.strip()))
        if not parts:
            raise raw.error("subscribe", "names no topic")
        _require_readable(raw, "subscribe", parts)
        return Subscription(topics=parts)
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise raw.error("subscribePattern", f"not a regular expression: {error}") from None
        return Subscription(pattern=pattern)
    if assign is None:
        raise raw.error("subscribe", f"required: one of {', '.join(names)}")
    try:
        document = json.loads(assign)
        for queues in document.values():
            lists = queues.values() if isinstance(queues, dict) else [queues]
            if not all(type(number) is int and number >= 0 for numbers in lists for number in numbers):
                raise ValueError("a queue id is not an integer from 0 on")
            if not all(lists):
                raise ValueError("a topic or a broker group has no queue")
        if not document or not all(document.values()):
            raise ValueError("no topic is named, or one without queues")
    except (ValueError, AttributeError, TypeError) as error:
        raise raw.error("assign", f'not JSON such as {{"topic":{{"broker-a":[0,1]}}}}: {error}') from None
    _require_readable(raw, "assign", document)
    return Subscription(assigned=document)


def _require_readable(raw: _RawOptions, name: str, topics: Iterable[str]) -> None:
    for topic in topics:
        if is_broker_written(topic):
            raise raw.error(
                name,
                f"{topic!r} is the brokers' own, which nobody else reads: name the topics that the messages are for, "
                "which have them once they are due or committed",
            )


def _parse_position(raw: _RawOptions, name: str, default: int) -> Position:
    text = raw.text(name)
    if text is None:
        return default
    word = text.strip().lower()
    is_start = name == "startingOffsets"
    if word == "earliest" and is_start:
        return EARLIEST
    if word == "latest" and (not is_start or raw.kind == "stream"):
        return LATEST
    if not text.lstrip().startswith("{"):
        words = "earliest" if raw.kind == "batch" else "earliest, latest"
        raise raw.error(name, f"allowed are {words if is_start else 'latest'}, or JSON with an offset for every queue")
    return QueueNumbers.parse(name, text, EARLIEST if is_start else LATEST)


def _parse_times(raw: _RawOptions, for_all: str, by_queue: str) -> int | QueueNumbers | None:
    text = raw.text(by_queue)
    return raw.integer(for_all, 0) if text is None else QueueNumbers.parse(by_queue, text, 0)


def _parse_tags(raw: _RawOptions) -> frozenset[str] | None:
    text = raw.text("tags")
    if text is None or text.strip() in ("", "*"):
        return None
    tags = frozenset(tag for part in text.split("||") if (tag := part.strip(JAVA_BLANKS)))
    if not tags:
        raise raw.error("tags", "names no tag, expected 'a || b' or '*'")
    return tags


def _parse_sql(raw: _RawOptions) -> str | None:
    text = raw.text("sql")
    if text is not None:
        try:
            SqlFilter.parse(text)
        except SubscriptionParseFailed as error:
            raise raw.error("sql", error.remark) from None
    return text


def _parse_group_id(raw: _RawOptions, subscription: Subscription) -> str | None:
    name, prefix = raw.text("groupId"), raw.text("groupIdPrefix")
    if prefix is not None:
        from zlib import crc32

        name = f"{prefix}-{crc32(repr(subscription).encode()):08x}"
    if name is not None and re.fullmatch(r"[%|a-zA-Z0-9_-]{1,120}", name) is None:
        option = "groupId" if prefix is None else "groupIdPrefix"
        raise raw.error(option, "group names have at most 120 of the characters a-z A-Z 0-9 _ - % |")
    return name
