"""The options of reads and writes: their names, what they are for, and the table for the documentation.

Options that Spark's Kafka source has too have the same names and meanings.
"""

from __future__ import annotations

from typing import Final, NamedTuple

READS: Final = ("batch", "stream")
SINKS: Final = ("batch sink", "stream sink")
_EVERYWHERE: Final = (*READS, *SINKS)


class Option(NamedTuple):
    """One option: the kinds of reads and writes that take it, its default, and what it does (Markdown)."""

    name: str
    kinds: tuple[str, ...]
    default: str
    meaning: str


OPTIONS: Final = (
    Option("namesrv", _EVERYWHERE, "required", "name servers, `host:port` separated by `;` or `,`"),
    Option("subscribe", READS, "", "topics, separated by commas"),
    Option("subscribePattern", READS, "", "regular expression that a topic's whole name must match; no system topics"),
    Option(
        "assign",
        READS,
        "",
        'queues as JSON: `{"topic":{"broker-a":[0,1]}}`, or `{"topic":[0,1]}` with one broker group',
    ),
    Option(
        "mode",
        READS,
        "`segments`; streams `queues`",
        "`segments` reads the log itself, `queues` queue by queue; `auto`, for streams, chooses once per checkpoint",
    ),
    Option("readFrom", READS, "`follower`", "which replicas serve the data: `follower`, `learner`, `any`, `leader`"),
    Option("readTimeout", READS, "`60s`", "how long a read may find no replica that serves it; then it fails"),
    Option(
        "minBytesPerSecond",
        READS,
        "`100000`",
        "a replica that sends an answer more slowly than this is given up for another one; `0` = however slowly",
    ),
    Option(
        "maxBytesPerSecond",
        READS,
        "",
        "each task that runs reads at most so many bytes a second, so that producers keep their share of the machines",
    ),
    Option(
        "pinLease",
        ("batch",),
        "`10m`",
        "lease of the pin that keeps retention from the messages to read; each read renews it; `0` = no pin "
        "(`mode=segments`)",
    ),
    Option(
        "pin",
        ("batch",),
        "the application's",
        "name of that pin, by which `dledger pin release` ends it earlier (`mode=segments`)",
    ),
    Option(
        "startingOffsets",
        READS,
        "`earliest`; streams `latest`",
        "`earliest`, `latest` (streams), or JSON with an offset for every queue, −2 = earliest, −1 = latest; "
        "a stream that restarts goes on from its checkpoint instead",
    ),
    Option(
        "endingOffsets",
        ("batch",),
        "`latest`",
        "`latest`, or JSON with an offset for every queue, exclusive; −1 = latest",
    ),
    Option("startingTimestamp", READS, "", "start at the first messages stored at or after this time, ms since 1970"),
    Option("startingOffsetsByTimestamp", READS, "", "JSON with such a time for every queue"),
    Option(
        "startingOffsetsByTimestampStrategy",
        READS,
        "`error`",
        "if a queue has no message so late: `error`, or `latest` = start at its end",
    ),
    Option(
        "endingTimestamp", ("batch",), "", "end before the first messages stored at or after this time, ms since 1970"
    ),
    Option("endingOffsetsByTimestamp", ("batch",), "", "JSON with such a time for every queue"),
    Option("minPartitions", READS, "", "at least so many Spark partitions, about"),
    Option("maxRecordsPerPartition", READS, "", "at most so many messages in a Spark partition (`mode=queues`)"),
    Option("maxOffsetsPerTrigger", ("stream",), "", "at most so many messages in a micro-batch, shared by backlog"),
    Option(
        "minOffsetsPerTrigger", ("stream",), "", "wait for so many messages, but for no longer than `maxTriggerDelay`"
    ),
    Option("maxTriggerDelay", ("stream",), "`15m`", "see `minOffsetsPerTrigger`"),
    Option(
        "failOnDataLoss", READS, "`true`", "fail if messages that were to be read are gone; `false`: go on without them"
    ),
    Option(
        "badRecords",
        READS,
        "`FAILFAST`",
        "what happens to a message whose body cannot be decoded: `FAILFAST` fails the read, `PERMISSIVE` gives a null "
        "`value` and the raw body in the column `_corrupt_record`, `DROPMALFORMED` leaves it out",
    ),
    Option("includeHeaders", READS, "`false`", "add the column `headers`"),
    Option("columns", READS, "all", "the columns to make, separated by commas; fewer are faster"),
    Option(
        "pushDownFilters",
        ("batch",),
        "`false`",
        "let `where` narrow what is read; only for a frame on which nothing else is asked afterwards, because Spark "
        "keeps its plan, and with `spark.sql.python.filterPushdown.enabled`",
    ),
    Option("tags", READS, "", "only messages with one of these tags: `a || b`"),
    Option(
        "sql",
        READS,
        "",
        "only messages for whose properties this expression in SQL92 is true, `region = 'eu' AND amount > 100`; "
        "the tag is the property `TAGS`",
    ),
    Option(
        "groupId",
        ("stream",),
        "",
        "publish progress as the offsets of this consumer group, with which nobody may consume",
    ),
    Option(
        "groupIdPrefix",
        ("stream",),
        "",
        "publish progress as a group of this name with a hash of the subscription behind it",
    ),
    Option("topic", SINKS, "", "the topic to write to; without it, the column `topic` names each row's topic"),
    Option("producerGroup", SINKS, "`spark-sink`", "the producer group"),
    Option(
        "jobId",
        ("batch sink",),
        "",
        "what identifies the job: a repeated run with the same id writes nothing twice, if rows have the columns of "
        "origin or the input is sliced as before; under `foreachBatch` the query and the batch are part of it",
    ),
    Option("maxRowsPerSecond", SINKS, "", "at most so many rows a second from each task that runs"),
    Option(
        "deliveryTimeout",
        SINKS,
        "a quarter of the brokers' window, `30s`",
        "how long a message may take to be acknowledged; then the task fails. Where rows have an identity at most half "
        "of the window (`idempotent_window_ms`), after which no broker recognizes a repetition",
    ),
)
"""Every option."""


def options_table() -> str:
    """Return the table of all options, in Markdown."""
    lines = ["| option | for | default | |", "|---|---|---|---|"]
    for option in OPTIONS:
        kinds = "all" if option.kinds == _EVERYWHERE else "reads" if option.kinds == READS else ", ".join(option.kinds)
        kinds = "sinks" if option.kinds == SINKS else kinds
        meaning = option.meaning.replace("|", "\\|")
        lines.append(f"| `{option.name}` | {kinds} | {option.default} | {meaning} |")
    return "\n".join(lines) + "\n"
