"""Offsets: how far consumer groups have consumed, and where queues begin and end.

`table.py` has the replicated offsets, and `recent_commits.py` the memory of recent committers. `commits.py` and
`buffer.py` take commits into the log. `requests.py` has the request codes.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.clients.readers import Readers
from dledger_broker.features.groups.requests import GroupRequests
from dledger_broker.features.offsets.commits import OffsetCommits
from dledger_broker.features.offsets.requests import OffsetRequests
from dledger_broker.features.offsets.table import OFFSET_COMMANDS, OFFSETS
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> OffsetRequests:
    machine, env = context.machine, context.env
    commits = OffsetCommits(machine, env, context.config.offset_flush_ms)
    groups = context.parts[GroupRequests].proposals
    return OffsetRequests(machine, env, context.group, context.requests, groups, commits, context.parts[Readers])


FEATURE: Final = Feature(name="offsets", commands=OFFSET_COMMANDS, table=OFFSETS, build=_build)
