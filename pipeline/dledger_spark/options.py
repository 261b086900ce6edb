"""Options of a read or write, read from what a user gave; case does not matter, as everywhere in Spark.

What is not in `dledger_spark.declared_options.OPTIONS` is refused.
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

from .declared_options import OPTIONS
from .errors import OptionError
from .offsets import EARLIEST, LATEST, MAX_NUMBER, QueueNumbers
from .schema import selected_columns
from .throttle import MIN_REQUEST_BYTES
from .topics import is_broker_written
from .wanted import RowFilter

Kind: TypeAlias = Literal["batch", "stream", "batch sink", "stream sink"]
Position: TypeAlias = int | QueueNumbers
"""Where to start or end: `EARLIEST`, `LATEST`, or a number for every queue."""

_ROLES: Final = {
    "follower": "follower",
    "learner": "learner",
    "any": "follower,learner,leader",
    "leader": "leader",
}
JAVA_BLANKS: Final = "".join(map(chr, range(33)))
"""What brokers take away around a tag: less than `str.strip` does."""
MAX_TIMEOUT_S: Final = 86_400.0
DEFAULT_MIN_BYTES_PER_SECOND: Final = 100_000
"""Far below what any usable link gives, and enough to tell a replica that only dribbles."""
_BY_LOWER_CASE: Final = {option.name.lower(): option for option in OPTIONS}
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
_UNIT_SECONDS: Final = {None: 0.001, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which topics, and of them which queues: exactly one of the three."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read, checked. Times are ms since 1970, durations seconds."""

    namesrv: tuple[str, ...]
    subscription: Subscription
    mode: Literal["segments", "queues"]
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
        """The same for the columns of a schema that the user gave, or of the one that `columns` made."""
        return replace(self, columns=selected_columns(",".join(names), include_headers=False))

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
    delivery_timeout_s: float
    max_rows_per_second: int | None = None


class _Given:
    """The options as they were given; every one is taken at most once, by its name."""

    def __init__(self, options: Mapping[str, str], kind: Kind) -> None:
        self._values: dict[str, str] = {}
        self.kind = kind
        for key, value in options.items():
            option = _BY_LOWER_CASE.get(key.lower())
            if option is None or kind not in option.kinds:
                names = ", ".join(option.name for option in OPTIONS if kind in option.kinds)
                raise OptionError(key, value, f"not an option of a {kind}; there are {names}")
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
        given = [name for name in names if name in self]
        if len(given) > 1:
            raise self.error(given[0], f"contradicts {given[1]!r}: give one of them")


def read_options(options: Mapping[str, str], kind: Literal["batch", "stream"]) -> ReadOptions:
    """The checked options of a read. Raises `OptionError`, which names the option, its value and what is allowed."""
    given = _Given(options, kind)
    is_batch = kind == "batch"
    name_servers = given.name_servers()
    mode = given.one_of("mode", "segments" if is_batch else "queues", ("segments", "queues"))
    if mode == "segments" and not is_batch:
        raise given.error("mode", "streams read queue by queue: allowed is queues")
    if mode == "segments" and "maxRecordsPerPartition" in given:
        raise given.error("maxRecordsPerPartition", "slices of the log are cut by bytes: allowed with mode=queues only")
    for pinning in ("pin", "pinLease"):
        if mode == "queues" and pinning in given:
            raise given.error(pinning, "a read queue by queue pins nothing: allowed with mode=segments only")
    given.exclusive("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
    given.exclusive("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    given.exclusive("groupId", "groupIdPrefix")
    read_timeout_s = given.seconds("readTimeout", 60.0)
    if read_timeout_s == 0:
        raise given.error("readTimeout", "allowed are durations above 0")
    slowest = given.integer("minBytesPerSecond", 0)
    minimum, maximum = given.integer("minOffsetsPerTrigger", 1), given.integer("maxOffsetsPerTrigger", 1)
    if minimum is not None and maximum is not None and minimum > maximum:
        raise given.error("minOffsetsPerTrigger", f"more than maxOffsetsPerTrigger, which is {maximum}")
    if "maxTriggerDelay" in given and minimum is None:
        raise given.error("maxTriggerDelay", "without effect unless minOffsetsPerTrigger is given")
    starts, ends = given.integer("startingTimestamp", 0), given.integer("endingTimestamp", 0)
    if starts is not None and ends is not None and starts > ends:
        raise given.error("startingTimestamp", f"after endingTimestamp, which is {ends}")
    if given.text("pin") == "":
        raise given.error("pin", "must not be empty")
    subscription = _subscription(given)
    return ReadOptions(
        namesrv=name_servers,
        subscription=subscription,
        mode="segments" if mode == "segments" else "queues",
        read_from=given.one_of("readFrom", "follower", tuple(_ROLES)),
        read_timeout_s=read_timeout_s,
        min_bytes_per_second=DEFAULT_MIN_BYTES_PER_SECOND if slowest is None else slowest,
        max_bytes_per_second=given.integer("maxBytesPerSecond", MIN_REQUEST_BYTES),
        pin_lease_ms=round(given.seconds("pinLease", 600.0, 3600.0) * 1000),
        pin=given.text("pin"),
        starting=_position(given, "startingOffsets", EARLIEST if is_batch else LATEST),
        ending=_position(given, "endingOffsets", LATEST),
        starting_times=_times(given, "startingTimestamp", "startingOffsetsByTimestamp"),
        ending_times=_times(given, "endingTimestamp", "endingOffsetsByTimestamp"),
        latest_without_time=given.one_of("startingOffsetsByTimestampStrategy", "error", ("error", "latest"))
        == "latest",
        min_partitions=given.integer("minPartitions", 1),
        max_records_per_partition=given.integer("maxRecordsPerPartition", 1),
        max_offsets_per_trigger=maximum,
        min_offsets_per_trigger=minimum,
        max_trigger_delay_s=given.seconds("maxTriggerDelay", 900.0),
        fail_on_data_loss=given.boolean("failOnDataLoss", default=True),
        columns=selected_columns(given.text("columns"), given.boolean("includeHeaders", default=False)),
        push_down_filters=given.boolean("pushDownFilters", default=False),
        tags=_tags(given),
        sql=_sql(given),
        group_id=_group_id(given, subscription),
    )


def means_a_stream(options: Mapping[str, str]) -> bool:
    """Whether one of the options is there for streaming reads only."""
    found = (_BY_LOWER_CASE.get(name.lower()) for name in options)
    return any(option is not None and option.kinds == ("stream",) for option in found)


def write_options(options: Mapping[str, str], kind: Literal["batch sink", "stream sink"]) -> WriteOptions:
    """The checked options of a write; `path` and `checkpointLocation` are Spark's own. Raises `OptionError`."""
    own = {key: value for key, value in options.items() if key.lower() not in ("path", "checkpointlocation")}
    given = _Given(own, kind)
    timeout_s = given.seconds("deliveryTimeout", 120.0)
    if timeout_s == 0:
        raise given.error("deliveryTimeout", "allowed are durations above 0")
    for name in ("topic", "jobId", "producerGroup"):
        if given.text(name) == "":
            raise given.error(name, "must not be empty")
    group = given.text("producerGroup") or "spark-sink"
    return WriteOptions(
        given.name_servers(),
        given.text("topic"),
        group,
        given.text("jobId"),
        timeout_s,
        given.integer("maxRowsPerSecond", 1),
    )


def _subscription(given: _Given) -> Subscription:
    names = ("subscribe", "subscribePattern", "assign")
    given.exclusive(*names)
    topics = given.text("subscribe")
    pattern = given.text("subscribePattern")
    assign = given.text("assign")
    if topics is not None:
        parts = tuple(dict.fromkeys(part.strip() for part in topics.split(",") if part.strip()))
        if not parts:
            raise given.error("subscribe", "names no topic")
        _require_readable(given, "subscribe", parts)
        return Subscription(topics=parts)
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise given.error("subscribePattern", f"not a regular expression: {error}") from None
        return Subscription(pattern=pattern)
    if assign is None:
        raise given.error("subscribe", f"required: one of {', '.join(names)}")
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
        raise given.error("assign", f'not JSON such as {{"topic":{{"broker-a":[0,1]}}}}: {error}') from None
    _require_readable(given, "assign", document)
    return Subscription(assigned=document)


def _require_readable(given: _Given, name: str, topics: Iterable[str]) -> None:
    for topic in topics:
        if is_broker_written(topic):
            raise given.error(
                name,
                f"{topic!r} is the brokers' own, which nobody else reads: name the topics that the messages are for, "
                "which have them once they are due or committed",
            )


def _position(given: _Given, name: str, default: int) -> Position:
    text = given.text(name)
    if text is None:
        return default
    word = text.strip().lower()
    is_start = name == "startingOffsets"
    if word == "earliest" and is_start:
        return EARLIEST
    if word == "latest" and (not is_start or given.kind == "stream"):
        return LATEST
    if not text.lstrip().startswith("{"):
        words = "earliest" if given.kind == "batch" else "earliest, latest"
        raise given.error(
            name, f"allowed are {words if is_start else 'latest'}, or JSON with an offset for every queue"
        )
    return QueueNumbers.parse(name, text, EARLIEST if is_start else LATEST)


def _times(given: _Given, for_all: str, by_queue: str) -> int | QueueNumbers | None:
    text = given.text(by_queue)
    return given.integer(for_all, 0) if text is None else QueueNumbers.parse(by_queue, text, 0)


def _tags(given: _Given) -> frozenset[str] | None:
    text = given.text("tags")
    if text is None or text.strip() in ("", "*"):
        return None
    tags = frozenset(tag for part in text.split("||") if (tag := part.strip(JAVA_BLANKS)))
    if not tags:
        raise given.error("tags", "names no tag, expected 'a || b' or '*'")
    return tags


def _sql(given: _Given) -> str | None:
    text = given.text("sql")
    if text is not None:
        try:
            SqlFilter.parse(text)
        except SubscriptionParseFailed as error:
            raise given.error("sql", error.remark) from None
    return text


def _group_id(given: _Given, subscription: Subscription) -> str | None:
    name, prefix = given.text("groupId"), given.text("groupIdPrefix")
    if prefix is not None:
        from zlib import crc32

        name = f"{prefix}-{crc32(repr(subscription).encode()):08x}"
    if name is not None and re.fullmatch(r"[%|a-zA-Z0-9_-]{1,120}", name) is None:
        option = "groupId" if prefix is None else "groupIdPrefix"
        raise given.error(option, "group names have at most 120 of the characters a-z A-Z 0-9 _ - % |")
    return name
