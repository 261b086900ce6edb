"""Jobs over a whole cluster's messages: each a function for notebooks, and a command of `dledger spark`.

`archive` (topics to Parquet, exactly once) with `compact` and `read_archive`, `verify` (every follower's log), `stats`,
`lag` and `replay`. One module per job; `archives`, `manifest` and `storage` are what an archive is on disk. A job gets
a session and plain values, reports its phases to `on_phase`, and returns a dataclass; nothing here prints.
"""

from __future__ import annotations

from ..errors import JobError
from .archives import read_archive
from .archiving import ArchiveResult, archive
from .compaction import CompactionResult, compact
from .lags import LagResult, lag
from .replaying import ReplayResult, replay
from .statistics import StatsResult, message_stats, stats
from .verification import VerifyResult, verify

__all__ = [
    "ArchiveResult",
    "CompactionResult",
    "JobError",
    "LagResult",
    "ReplayResult",
    "StatsResult",
    "VerifyResult",
    "archive",
    "compact",
    "lag",
    "message_stats",
    "read_archive",
    "replay",
    "stats",
    "verify",
]
