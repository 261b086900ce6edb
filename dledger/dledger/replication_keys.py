"""Configuration keys of a node of the log. A service has them in its file among its own keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dledger.store.log import RESERVE_BYTES
from dledger.types import ENGINES, NATIVE_ENGINE
from dledger_base.config_keys.declared import Alias, key, limit

_MIB: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Replication:
    """Settings of how a group replicates its log."""

    flush: str = key(
        "sync",
        '`"sync"`: a message is acknowledged once a majority has written it and called fdatasync. `"async"`: once a '
        "majority has written it; a power failure of several nodes can lose acknowledged messages. A node whose host "
        "then went down without a clean stop, or whose sync failed, votes only once a leader has brought it up to "
        "date. See [a node waits for a leader](operations/cluster.md#a-node-waits-for-a-leader)",
        choices=("sync", "async"),
        expected="'sync' (acknowledged = on disk on a majority) or 'async' (faster, a power loss of several nodes can "
        "lose acknowledged messages)",
        aliases=(Alias("flushDiskType", words={"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}),),
    )
    engine: str = key(
        NATIVE_ENGINE,
        "algorithm that orders entries and decides when they are committed, see [engines](operations/engines.md). The "
        "group is founded with it. Later `dledger node convert` changes it while all nodes of the group are stopped",
        choices=ENGINES,
        expected="'native', or 'pysyncobj' (needs the extra pysyncobj)",
    )
    segment_bytes: int = key(
        1 << 30,
        "size of a log file; fixed when the group is founded",
        bounds=(_MIB, 1 << 40),
        aliases=(Alias("mappedFileSizeCommitLog"),),
    )
    heartbeat_ms: int = key(
        100,
        "interval between two heartbeats of a leader; at most half of `election_min_ms`",
        bounds=(10, 60_000),
        below=("election_min_ms", "followers would start elections between two heartbeats"),
    )
    election_min_ms: int = key(
        500,
        "minimum election timeout. A follower starts an election if it hears nothing from a leader for a random time "
        "between this key and `election_max_ms`",
        bounds=(50, 600_000),
        below=("election_max_ms", "followers would start elections at the same moment"),
    )
    election_max_ms: int = key(1000, "maximum election timeout", bounds=(50, 600_000))
    max_uncommitted_bytes: int = limit(
        64 * _MIB,
        "maximum size of the entries that are proposed and not yet committed",
        consequence="beyond it, sends are answered with code 2 (system busy)",
        bounds=(_MIB, 1 << 32),
    )
    snapshot_interval_s: int = limit(
        5, "minimum interval between two snapshots of the replicated state", bounds=(1, 86_400)
    )
    reserve_bytes: int = limit(
        RESERVE_BYTES,
        "disk space that is reserved for elections, membership changes and trims on a full disk; at most a quarter of "
        "a segment. Consumer offsets may use half of it",
        bounds=(_MIB, 1 << 40),
    )
