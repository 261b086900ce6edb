"""Keys for retention, timing and logs of a node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dledger_base.config_keys.declared import Alias, ConfigValue, UnexpectedError, key, limit
from dledger_base.logs import FORMATS, STDOUT
from dledger_broker.broker_conf import percent

MIB: Final = 1 << 20
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, kw_only=True)
class ReadingTheLog:
    """Limit on the bandwidth that readers of log ranges may take from producers."""

    busy_range_bytes_per_s: int = limit(
        8 * MIB,
        "minimum rate at which a busy node serves [ranges of the log](wire.md#reading-the-log), which Spark jobs "
        "read, so that old data gives way to new. A node is busy while it takes in 1 MiB/s or more and has to wait "
        "for a core of its machine. Each 0.1 s of that divides the rate by ten, down to this minimum. About 1 s "
        "afterwards the rate is unlimited again. 0 = ranges never give way. They never do if the kernel does not "
        "count how long a thread waits (`/proc/thread-self/schedstat`)",
        bounds=(0, 1 << 40),
    )


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Limits on the age and size of the log, and what a full disk deletes."""

    retention_hours: int = key(
        72,
        "maximum age of messages; older ones are deleted while the leader's clock agrees with a majority's within 60 "
        "s. [A segment is as old as its newest message](#what-a-wrong-clock-does-to-retention), on every node alike",
        bounds=(1, 24 * 365 * 100),
        aliases=(Alias("fileReservedTime"),),
        live=True,
    )
    retention_bytes: int = key(
        0,
        "maximum size of the log; the oldest messages beyond it have expired; 0 = no limit",
        bounds=(0, 1 << 60),
        live=True,
    )
    disk_max_used_ratio: float = key(
        0.75,
        "watermark: used share of a disk above which nodes [warn](operations/disks.md), and expired messages are "
        "deleted at once, even if pinned. The fullest disk of all voters that answer counts, whatever fills it. "
        "Messages expire by `retention_hours` or `retention_bytes`; no other messages are deleted because of this "
        "key, as with RocketMQ's. From 0.05 below it on, delayed messages are written again if their part of the log "
        "is about to be deleted",
        bounds=(0.10, 0.95),
        aliases=(Alias("diskMaxUsedSpaceRatio", percent, "percent"),),
        live=True,
    )
    when_full: str = key(
        "refuse",
        "behaviour on a full disk. `refuse` refuses sends until there is space, and deletes nothing that has not "
        "expired. `delete-oldest` deletes the oldest messages of any age while a disk is fuller than "
        "`delete_oldest_ratio`. The fullest disk of all voters that answer counts",
        consequence="with `delete-oldest`, delayed messages and open transactions among the oldest messages may be "
        "lost. Pinned messages that have not expired stay",
        choices=("refuse", "delete-oldest"),
        expected="'refuse' or 'delete-oldest': the behaviour on a full disk",
        live=True,
    )
    delete_oldest_ratio: float = key(
        0.85,
        'used share of a disk above which `when_full = "delete-oldest"` deletes; without `delete-oldest` this key has '
        "no effect",
        bounds=(0.10, 0.99),
        live=True,
    )


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Times for which a node waits, and intervals at which it sends."""

    drain_ms: int = key(
        35_000,
        "time for which a node goes on forwarding requests after SIGTERM. Stock clients ask for the route again after "
        "30 s, so it should be longer",
        bounds=(0, _DAY_MS),
    )
    forward_hold_ms: int = limit(
        2_000,
        "maximum time that a request waits for a leader, at most 5 s for pulls and commits; after it the request is "
        "answered 14. Stock clients give up after 3 s",
        bounds=(0, 60_000),
    )
    quorum_timeout_ms: int = limit(
        2_500,
        "maximum time that a write waits for a majority; after it its outcome is reported as unknown",
        bounds=(100, 600_000),
    )
    register_period_ms: int = key(
        5_000,
        "interval between two signs of life to a name server",
        bounds=(100, 60_000),
        below=("register_timeout_ms", "name servers would drop this node between two registrations"),
        aliases=(Alias("registerNameServerPeriod"),),
    )
    register_timeout_ms: int = limit(
        15_000, "silence after which a name server drops this node", bounds=(1_000, 600_000)
    )
    offset_flush_ms: int = limit(
        200, "time for which commits of consumer offsets are collected into one entry", bounds=(1, 10_000)
    )


def _log_file(_name: str, value: ConfigValue, base: Path) -> str | Path:
    if not isinstance(value, str):
        raise UnexpectedError("a path as text")
    return value if value in ("", STDOUT) else base / Path(value).expanduser()


@dataclass(frozen=True, kw_only=True)
class Logs:
    """Place and form of a node's logs."""

    audit_days: int = key(
        90,
        "number of days for which files of the [audit log](operations/logs.md#audit-log) are kept",
        bounds=(1, 36_500),
    )
    log_format: str = key("text", "format of log lines; [Logs](operations/logs.md) describes both", choices=FORMATS)
    log_file: str | Path = key(
        "",
        'file of the log: a path, different for each node, or `"stdout"`; `""` is `log/broker.log` in `data_dir`',
        takes="a path",
        read=_log_file,
    )
