"""The log's own state commands (kinds below 16; see `dledger.format.iter_commands`)."""

from __future__ import annotations

import msgspec

from dledger.format import iter_commands, only_kind

SNAPSHOT_MARK = 1
"""Placed in the first entry of a segment: every replica takes a snapshot of its state before applying this entry.

No payload.
"""
TRIM = 2
"""Every replica drops the log before a position, once it has the snapshot of that position. Payload: `Trim`."""
DIGEST = 3
"""Digest of a replica's state at a snapshot mark. Payload: `Digest`."""
FIRST_SERVICE_KIND = 16
"""First kind that belongs to the state machine."""


def has_own(section: memoryview) -> bool:
    """Return whether any command of a section is the log's own."""
    kind = only_kind(section)
    if kind is not None:
        return kind < FIRST_SERVICE_KIND
    for kind, _ in iter_commands(section):  # noqa: SIM110 - `any` would cost a second generator for each entry
        if kind < FIRST_SERVICE_KIND:
            return True
    return False


class Trim(msgspec.Struct, frozen=True, array_like=True):
    """Payload of `TRIM`. `position` is the start of a marked segment."""

    position: int


class Digest(msgspec.Struct, frozen=True, array_like=True):
    """Payload of `DIGEST`: a replica (node id and incarnation) had `digest` at the mark at `position`."""

    position: int
    node_id: str
    incarnation: str
    digest: int
