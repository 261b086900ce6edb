"""The log's own state commands (kinds below 16; see `dledger.format.iter_commands`)."""

from __future__ import annotations

import msgspec

from dledger.format import iter_commands, only_kind

SNAPSHOT_MARK = 1
"""In the first entry of a segment: every replica snapshots its state before applying this entry.  No payload."""
TRIM = 2
"""Every replica drops what lies before a position, once it has the snapshot of that position.  Payload: `Trim`."""
DIGEST = 3
"""What one replica's state amounted to at a snapshot mark.  Payload: `Digest`."""
FIRST_SERVICE_KIND = 16
"""Kinds from here on belong to the state machine."""


def has_own(section: memoryview) -> bool:
    """Whether any command of a section is the log's own."""
    kind = only_kind(section)
    if kind is not None:
        return kind < FIRST_SERVICE_KIND
    for kind, _ in iter_commands(section):  # noqa: SIM110 - `any` would cost a second generator for each entry
        if kind < FIRST_SERVICE_KIND:
            return True
    return False


class Trim(msgspec.Struct, frozen=True, array_like=True):
    """`position` is the start of a marked segment."""

    position: int


class Digest(msgspec.Struct, frozen=True, array_like=True):
    """`replica` (node id, incarnation) had `digest` at the mark at `position`."""

    position: int
    node_id: str
    incarnation: str
    digest: int
