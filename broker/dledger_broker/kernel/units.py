"""Units of the broker's own, as they are handed to a `LogWriter`, and the outcomes that it reports."""

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
    """A message to be stored.

    `properties` is the raw property text, at most 32,767 bytes. `born_ms` is the sender's clock, ms since 1970.
    `born_host` is its IPv4 address and port in 8 bytes, because followers find fields by their place in records with an
    IPv4 host. A message that the broker may have to store again later keeps 1 KiB of its properties free.
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
    """Position of the half message, if a commit stores this message for it; otherwise 0."""

    @property
    def size(self) -> int:
        """Size in bytes of its record in the log."""
        return record_size(len(self.body), len(self.topic.encode()), len(self.properties))


@dataclass(frozen=True)
class FixedRows:
    """A raw command whose payload of `size` bytes names records of its own unit.

    `write(payload, positions)` fills in the payload when the positions are known: one for each record given to
    `LogWriter.write`, None for a record that is left out. It is called inside `LogWriter.write`, unless that fails
    before. It must not raise.
    """

    kind: int
    size: int
    write: Callable[[memoryview, Sequence[int | None]], None]


class Place(NamedTuple):
    """Place of a record: its position in the log, its size there, its offset in its queue."""

    position: int
    size: int
    queue_offset: int


class Stored(msgspec.Struct, frozen=True):
    """The unit is applied, and its messages can be read. `places` has an item for each record that was to be written.

    The item is None for a record that was left out: its topic or queue was not there, or the topic was being deleted.
    """

    places: tuple[Place | None, ...]


class Unknown(msgspec.Struct, frozen=True):
    """Leadership was lost before the unit was applied. It may be in the log, and may take effect later."""


class NotStored(msgspec.Struct, frozen=True):
    """Nothing of a unit is in any log, nor will be. `error` says why. The unit may be written again."""

    error: LogError


UnitOutcome: TypeAlias = Stored | NotStored | Unknown

Told: TypeAlias = Callable[[UnitOutcome], None]
"""Receives the outcome of a unit."""


def failure(outcome: UnitOutcome, unknown: str) -> Exception:
    """Return the error for a request that waits for a unit. `unknown` is the text for an unknown outcome."""
    return outcome.error if isinstance(outcome, NotStored) else OutcomeUnknown(unknown)


class UnitWriter(Protocol):
    """Writer of units, see `LogWriter`."""

    def write(
        self,
        records: Sequence[NewRecord],
        commands: Sequence[Command | FixedRows] = (),
        *,
        done: Told,
        privileged: bool = False,
    ) -> None:
        """Store records and commands as one unit."""
