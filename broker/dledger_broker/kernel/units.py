"""Units of the broker's own, as they are handed to a `LogWriter`, and what is told of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from dledger.errors import LogError
from dledger_broker.kernel.commands import Command
from dledger_remoting.errors import OutcomeUnknown
from dledger_remoting.record import record_size


class NewRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be stored. `properties` is the raw property text, at most 32,767 bytes; `born_ms` is the sender's
    clock, ms since 1970, and `born_host` its IPv4 address and port in 8 bytes: followers find fields by their place in
    records with such hosts. What the broker may have to store again later keeps 1 KiB of its properties free.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_ms: int
    born_host: bytes
    reconsume_times: int = 0
    prepared_position: int = 0
    """Where the half stands that a commit stores this message of; 0 for any other."""

    @property
    def size(self) -> int:
        """Bytes that its record takes in the log."""
        return record_size(len(self.body), len(self.topic.encode()), len(self.properties))


@dataclass(frozen=True)
class FixedRows:
    """A raw command whose payload of `size` bytes names records of its own unit.

    `write(payload, positions)` fills it in when these are known: one for each record given to `LogWriter.write`, None
    for those that are left out. It is called inside `write`, unless that fails before; it must not raise.
    """

    kind: int
    size: int
    write: Callable[[memoryview, Sequence[int | None]], None]


class Place(NamedTuple):
    """Where a record stands: its position in the log, its size there, its offset in its queue."""

    position: int
    size: int
    queue_offset: int


class Stored(msgspec.Struct, frozen=True):
    """A unit is applied, and its messages can be read. `places` has one for each record that was to be written.

    It is None for a record that was left out: its topic or queue was not there, or the topic was being deleted.
    """

    places: tuple[Place | None, ...]


class Unknown(msgspec.Struct, frozen=True):
    """Leadership was lost before the unit was applied: it may be in the log, and may take effect later."""


class NotStored(msgspec.Struct, frozen=True):
    """Nothing of a unit is in any log, nor will be: `error` says why, and that it may be written again."""

    error: LogError


UnitOutcome: TypeAlias = Stored | NotStored | Unknown

Told: TypeAlias = Callable[[UnitOutcome], None]
"""Told what became of a unit."""


def failure(outcome: UnitOutcome, unknown: str) -> Exception:
    """What somebody is told who waits for a unit; `unknown` is the text if nobody knows what became of it."""
    return outcome.error if isinstance(outcome, NotStored) else OutcomeUnknown(unknown)


class UnitWriter(Protocol):
    """What stores units, see `LogWriter`."""

    def write(
        self,
        records: Sequence[NewRecord],
        commands: Sequence[Command | FixedRows] = (),
        *,
        done: Told,
        privileged: bool = False,
    ) -> None:
        """Store records and commands as one unit."""
