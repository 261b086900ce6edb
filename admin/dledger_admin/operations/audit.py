"""Audit log of a cluster: who changed what, as the nodes that handled the changes have it."""

from __future__ import annotations

import msgspec

from dledger_client import Admin

from .each_group import ask_each


class AuditEntry(msgspec.Struct, frozen=True):
    """A change that a node handled. `before` and `after` are JSON, empty without a state. `time` is in UTC."""

    time: str
    node: str
    who: str
    address: str
    what: str
    outcome: str
    before: str
    after: str


class AuditEntries(msgspec.Struct, frozen=True):
    """Lines of the audit log, the newest first, and a sentence for each broker group that does not answer."""

    entries: list[AuditEntry]
    unseen: list[str]


async def newest(admin: Admin, word: str = "") -> AuditEntries:
    """Return the newest lines of all nodes that contain a word, the newest first; of each node at most 500.

    Nodes that do not answer, or are of a version that does not tell, are left out.
    """
    answers = await ask_each(admin, lambda name: admin.audit_lines(name, word=word))
    entries = [
        AuditEntry(line.time, node, line.who, line.address, line.what, line.outcome, line.before, line.after)
        for told in answers.found.values()
        for node, lines in told.items()
        for line in lines
    ]
    return AuditEntries(sorted(entries, key=lambda entry: entry.time, reverse=True), answers.unseen)
