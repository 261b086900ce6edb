"""Keys of a configuration for a node of the log; a service has them in its file among its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dledger.config_keys.declared import Alias, key
from dledger.store.log import RESERVE_BYTES
from dledger.types import ENGINES, NATIVE_ENGINE

_MIB: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Replication:
    """How a group replicates its log."""

    flush: str = key(
        "sync",
        '`"sync"`: acknowledged = fdatasync\'ed by a majority. `"async"`: written by a majority; a power failure '
        "of several nodes can lose acknowledged messages. A node whose host then went down without a clean stop votes "
        "only once a leader has brought it up to date, see [a node waits for a leader]"
        "(operations/cluster.md#a-node-waits-for-a-leader)",
        choices=("sync", "async"),
        expected="'sync' (acknowledged = on disk on a majority) or 'async' (faster, a power loss of several nodes can "
        "lose acknowledged messages)",
        aliases=(Alias("flushDiskType", words={"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}),),
    )
    engine: str = key(
        NATIVE_ENGINE,
        "what decides the order of entries and when they are committed, see [engines](engines.md). Counts when the "
        "group is founded; later `dledger node convert` changes it while all nodes of the group are stopped",
        choices=ENGINES,
        expected="'native', or 'pysyncobj' (needs the extra pysyncobj)",
    )
    segment_bytes: int = key(
        1 << 30,
        "size of a log file; counts when the group is founded, and is fixed from then on",
        bounds=(_MIB, 1 << 40),
        aliases=(Alias("mappedFileSizeCommitLog"),),
    )
    heartbeat_ms: int = key(
        100,
        "pause between two heartbeats of a leader; at most half of `election_min_ms`",
        bounds=(10, 60_000),
        below=("election_min_ms", "followers would start elections between two heartbeats"),
    )
    election_min_ms: int = key(
        500,
        "a follower that hears nothing for between this …",
        bounds=(50, 600_000),
        below=("election_max_ms", "followers would start elections at the same moment"),
    )
    election_max_ms: int = key(1000, "… and this long calls an election", bounds=(50, 600_000))
    max_uncommitted_bytes: int = key(
        64 * _MIB,
        "proposed and not yet committed",
        consequence="beyond it sends are answered 2",
        bounds=(_MIB, 1 << 32),
    )
    snapshot_interval_s: int = key(5, "least time between two snapshots of the replicated state", bounds=(1, 86_400))
    reserve_bytes: int = key(
        RESERVE_BYTES,
        "space kept back, when the disk is full, for elections, membership changes and trims, half of it also for "
        "consumer offsets; at most a quarter of a segment",
        bounds=(_MIB, 1 << 40),
    )
