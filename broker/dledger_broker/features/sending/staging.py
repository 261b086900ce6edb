"""Staging of units of plain sends: the last checks, and the way into the log. Native units take the same way."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from operator import attrgetter
from typing import Final, Protocol

from dledger_broker.features.quotas.gate import QuotaGate
from dledger_broker.features.sending.on_their_way import UnitInFlight, UnitsInFlight
from dledger_broker.features.sending.targets import SendTarget
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.writer import LogWriter
from dledger_remoting.hosts import HostAddress, pack_host
from dledger_remoting.ids import offset_message_id_prefix

_topic_of: Final = attrgetter("topic")


class EncodedUnit(UnitInFlight, Protocol):
    """Unit that encodes itself once its place in the log is known."""

    def encode(self, position: int, now_ms: int, store_host: bytes, id_prefix: bytes) -> list[bytes]:
        """Return the unit's records, whose first byte will be at `position`."""


class SendStaging:
    """Stager of units of sends. `store_host` is the numeric address in records and message ids."""

    def __init__(
        self,
        machine: BrokerMachine,
        writer: LogWriter,
        counters: BrokerCounters,
        quotas: QuotaGate,
        in_flight: UnitsInFlight,
        store_host: HostAddress,
    ) -> None:
        self.in_flight = in_flight
        """The units that are staged and not answered."""
        self._deleting = machine.proposals.deleting
        self._writer = writer
        self.counters = counters
        self._quotas = quotas
        self._store_host = pack_host(store_host)
        self._id_prefix = offset_message_id_prefix(store_host)

    def is_deleted(self, target: SendTarget) -> bool:
        """Return whether a topic was deleted since it was looked up, or its deletion is under way.

        If staged, its messages would be lost, or be taken for records of a topic that is created anew before them in
        the log.
        """
        return target.state.dropped or target.topic in self._deleting

    def limits(self, targets: Iterable[SendTarget]) -> bool:
        """Return whether quotas may limit sends to these topics."""
        return self._quotas.limits(map(_topic_of, targets))

    def stage(self, unit: EncodedUnit, size: int, commands: bytes | bytearray = b"") -> int:
        """Stage a unit whose records have `size` bytes, and return the position of its first record.

        Raises what `Log.stage` raises, with nothing staged.
        """
        fill = partial(unit.encode, store_host=self._store_host, id_prefix=self._id_prefix)
        begin = self._writer.stage_unit(size, fill, commands, unit)
        self.counters.bytes_in += size
        self.in_flight.add(unit)
        return begin
