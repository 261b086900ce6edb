"""Table of quotas that operators have set for accounts and topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.digest import MASK, item_hash
from dledger_broker.kernel.tables import Changes, Frame, Table, TableKey, in_slices

NAME: Final = "quotas"
"""Name of the feature. It must never change, because the activation of the feature is recorded under this name."""


class QuotaKind(StrEnum):
    """Kind of a quota: sends of an account, sends to a topic, and reads of either."""

    ACCOUNT = "account"
    TOPIC = "topic"
    ACCOUNT_READS = "account-reads"
    TOPIC_READS = "topic-reads"


class QuotaOwner(NamedTuple):
    """Account or topic that a quota limits. It need not exist."""

    kind: str
    name: str


class PutQuota(msgspec.Struct, frozen=True):
    """Command that sets the limits per second of an account or a topic. 0 means unlimited, and without limits the quota
    is removed.
    """

    kind: str
    name: str
    messages: int = 0
    size: int = 0


QUOTA_COMMANDS: Final[Kinds] = {63: PutQuota}


class QuotaFrame(msgspec.Struct, frozen=True, tag="quotas"):
    """Snapshot frame with quotas, in the order of their owners."""

    rows: list[PutQuota]


class QuotaTable(Table):
    """Table of all quotas, by owner. `changes` counts the changes that this replica has applied.

    The quota of a deleted topic stays. If sends create the topic anew, its limits are the same as before.
    """

    __slots__ = ("_quotas", "changes", "digest")

    digest: int

    frames = (QuotaFrame,)

    def __init__(self) -> None:
        self._quotas: dict[QuotaOwner, PutQuota] = {}
        self.digest = 0
        self.changes = 0

    def __len__(self) -> int:
        return len(self._quotas)

    def get(self, owner: QuotaOwner) -> PutQuota | None:
        """Return the quota of an account or a topic, or None."""
        return self._quotas.get(owner)

    def rows(self) -> list[PutQuota]:
        """Return all quotas, in the order of their owners."""
        return [self._quotas[owner] for owner in sorted(self._quotas)]

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        _ = entry, changes
        match command:
            case PutQuota():
                self._put(command)

    def _put(self, put: PutQuota) -> None:
        self.changes += 1
        owner = QuotaOwner(put.kind, put.name)
        old = self._quotas.pop(owner, None)
        if old is not None:
            self.digest = (self.digest - _hash(old)) & MASK
        if put.messages or put.size:
            self._quotas[owner] = put
            self.digest = (self.digest + _hash(put)) & MASK

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        _ = now
        return {"quotas": map(QuotaFrame, in_slices(self.rows()))} if self._quotas else {}

    def restore_frame(self, frame: Frame, now: float) -> None:
        _ = now
        match frame:
            case QuotaFrame(rows=rows):
                for row in rows:
                    self._put(row)


QUOTAS: Final = TableKey(NAME, QuotaTable)


def _hash(put: PutQuota) -> int:
    return item_hash("quota", put.kind, put.name, put.messages, put.size)
