"""PySyncObj as an engine: its `SyncObj` holds elections, accepts entries, counts acknowledgements and commits.

In its stock form PySyncObj loses data. `library` lists the reasons, and the replacement of each part:

- The store keeps the log (`journal`).
- Term and vote are durable before a message reflects them (`outbox`).
- Messages are `dledger.core.messages` on the project's own links.
- Callers pass the time, and the replica makes snapshots.

Pre-vote, reads, durable acknowledgements and the window of entries under way are added around it: in `engine` for every
replica, in `leading` for the leader.

Start reading in `engine`.
"""

from __future__ import annotations

from typing import Final

from dledger.consensus.engine import EngineKind
from dledger.core.messages import CODEC
from dledger.engines.pysyncobj.engine import PySyncObjEngine
from dledger.types import PYSYNCOBJ_ENGINE

PYSYNCOBJ: Final = EngineKind(PYSYNCOBJ_ENGINE, PySyncObjEngine, CODEC)
