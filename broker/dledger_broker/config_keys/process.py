"""How long a node keeps, waits and collects, and where it logs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dledger.config_keys.declared import Alias, ConfigValue, UnexpectedError, key
from dledger.logs import FORMATS, STDOUT
from dledger_broker.broker_conf import percent

MIB: Final = 1 << 20
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, kw_only=True)
class ReadingTheLog:
    """What readers of ranges may take from producers."""

    busy_range_bytes_per_s: int = key(
        8 * MIB,
        "what this node serves of [ranges of the log](wire.md#reading-the-log), which Spark jobs read, while it takes "
        "in a megabyte a second or more and has to wait for a core of its machine: reading what is old gives way to "
        "what comes in, a tenth of the pace every tenth of a second, and is as fast as it can be again a second later. "
        "0 = it never gives way. Where the kernel does not count how long a thread waits "
        "(`/proc/thread-self/schedstat`), it does not either",
        bounds=(0, 1 << 40),
    )


@dataclass(frozen=True, kw_only=True)
class Retention:
    """What becomes of old messages."""

    retention_hours: int = key(
        72,
        "messages older than this go, while the leader's clock agrees with a majority's within 60 s. [A segment is as "
        "old as its newest message](#what-a-wrong-clock-does-to-retention), on every node alike",
        bounds=(1, 24 * 365 * 100),
        aliases=(Alias("fileReservedTime"),),
        live=True,
    )
    retention_bytes: int = key(0, "largest log, 0 = no limit", bounds=(0, 1 << 60), live=True)
    disk_max_used_ratio: float = key(
        0.75,
        "the oldest segments go, whatever their age, while the disk of any voter that answers is fuller than this; "
        "delayed messages there are written again from 0.05 below it on",
        bounds=(0.10, 0.95),
        aliases=(Alias("diskMaxUsedSpaceRatio", percent, "percent"),),
        live=True,
    )


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long a node waits, and how often it tells."""

    drain_ms: int = key(
        35_000,
        "after SIGTERM: how long to go on forwarding; longer than the 30 s after which stock clients look the route up "
        "again",
        bounds=(0, _DAY_MS),
    )
    forward_hold_ms: int = key(
        2_000,
        "how long a request waits for a leader before it is answered 14; stock clients give up after 3 s",
        bounds=(0, 60_000),
    )
    quorum_timeout_ms: int = key(
        2_500,
        "how long a write waits for a majority before its outcome is reported as unknown",
        bounds=(100, 600_000),
    )
    register_period_ms: int = key(
        5_000,
        "pause between two signs of life to a name server",
        bounds=(100, 60_000),
        below=("register_timeout_ms", "name servers would drop this node between two registrations"),
        aliases=(Alias("registerNameServerPeriod"),),
    )
    register_timeout_ms: int = key(15_000, "silence after which a name server drops this node", bounds=(1_000, 600_000))
    offset_flush_ms: int = key(
        200, "how long commits of consumer offsets are collected into one entry", bounds=(1, 10_000)
    )


def _log_file(_name: str, value: ConfigValue, base: Path) -> str | Path:
    if not isinstance(value, str):
        raise UnexpectedError("a path as text")
    return value if value in ("", STDOUT) else base / Path(value).expanduser()


@dataclass(frozen=True, kw_only=True)
class Logs:
    """Where a node logs, and in which form."""

    log_format: str = key("text", "both are described in [Logs](operations/logs.md)", choices=FORMATS)
    log_file: str | Path = key(
        "",
        'a path of its own for each node, or `"stdout"`; `""` is `log/broker.log` in `data_dir`',
        takes="a path",
        read=_log_file,
    )
