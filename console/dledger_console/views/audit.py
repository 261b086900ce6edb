"""Audit: who changed what, from where, and with what outcome."""

from __future__ import annotations

from typing import Final

import msgspec

from dledger_admin.operations import audit
from dledger_admin.operations.audit import AuditEntry

from ..pages import AnyChange, AnyLook, Call, Look, Rows, Search, cut


class Audit(msgspec.Struct, frozen=True):
    """A page of the audit log, the newest first. `unseen` has a sentence for each broker group that does not answer."""

    entries: list[AuditEntry]
    rows: Rows
    unseen: list[str]


async def list_entries(call: Call, wanted: Search) -> Audit:
    """Return one page of the newest changes; with a search only lines that contain its letters."""
    found = await audit.newest(call.admin, wanted.q.strip())
    return Audit(*cut(found.entries, wanted.page), found.unseen)


LOOKS: Final[list[AnyLook]] = [
    Look(
        path="/audit",
        summary="Audit log: who changed what, and the outcome.",
        wanted=Search,
        answer=list_entries,
        template="audit.html",
        section="audit",
    ),
]
CHANGES: Final[list[AnyChange]] = []
