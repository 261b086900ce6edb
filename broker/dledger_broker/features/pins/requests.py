"""Requests about pins: made (20013), deleted (20014), listed (20015), renewed by range reads that name them.

A job of the leader deletes the pins whose leases have ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger.errors import LogError
from dledger_broker.features.pins.proposed import ProposedPins
from dledger_broker.features.pins.table import PINS, DeletePins, PutPin
from dledger_broker.kernel import rights
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.jobs import Job, JobHandle
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part
from dledger_broker.kernel.requests import Buffer, Request, Requests, WaitsCounted, channel_key, own_request
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Needs, Route
from dledger_remoting.bodies import encode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand
from dledger_remoting.errors import InvalidParameter, ReadTrimmed, ServiceNotAvailable
from dledger_remoting.headers import PinHeader, PinNameHeader, PinResponseHeader, decode_ext, encode_ext
from dledger_remoting.headers_range import MAX_LEASE_MS
from dledger_remoting.hosts import HostAddress
from dledger_remoting.name_limits import MAX_PIN_NAME_BYTES
from dledger_remoting.range_reads import PinList, PinRow

CHECK_PERIOD_S: Final = 10.0
"""Interval in seconds between two searches."""


class PinLeases:
    """Leader job that ends expired leases every ten seconds; implements `dledger_broker.kernel.jobs.Job`. The first
    search also waits that long: without a leader, readers could not renew their pins.
    """

    name: Final = "pin_leases"

    def __init__(self, machine: BrokerMachine, proposed: ProposedPins, env: Environment) -> None:
        self._machine = machine
        self._proposed = proposed
        self._env = env

    def run(self, handle: JobHandle) -> None:
        """Begin to search for expired leases."""
        handle.call_later(CHECK_PERIOD_S, partial(self._check_regularly, handle))

    def _check_regularly(self, handle: JobHandle) -> None:
        handle.call_later(CHECK_PERIOD_S, partial(self._check_regularly, handle))
        self.check(handle)

    def check(self, handle: JobHandle) -> None:
        """Delete the pins whose leases are over."""
        names = self._proposed.expired(self._env.wall_ms())
        if names and self._machine.understood_by_all(DeletePins):
            self._proposed.delete(names, _ignore_outcome, handle)


def _ignore_outcome(_error: object) -> None:
    """Ignore the outcome: the next search finds the pins that are still there."""


MAX_PINS: Final = 1_000
RENEW_AFTER_SHARE: Final = 0.25
"""Share of a pin's lease after which a range read renews the pin."""


_LOG: Final = (rights.cluster(Action.LOG),)


class PinRequests(Part):
    """Handler of requests that change or list pins, on the leader."""

    def __init__(
        self,
        machine: BrokerMachine,
        proposed: ProposedPins,
        env: Environment,
        group: LeadershipView,
        requests: Requests,
    ) -> None:
        self._machine = machine
        self.proposed = proposed
        self._env = env
        self._group = group
        self._requests = requests
        self._renewing: dict[str, float] = {}
        self._leases = PinLeases(machine, proposed, env)

    @property
    def routes(self) -> Mapping[int, Route]:
        return {
            RequestCode.PIN_LOG: Route(self.pin, Needs.LEADER, CHANGES, rights=_LOG),
            RequestCode.UNPIN_LOG: Route(self.unpin, Needs.LEADER, CHANGES, rights=_LOG),
            RequestCode.LIST_PINS: Route(self.list, Needs.CONFIRMED_LEADER, NO_EFFECT, rights=_LOG),
        }

    @property
    def jobs(self) -> Sequence[Job]:
        return (self._leases,)

    @property
    def gauges(self) -> Sequence[Gauge]:
        return (Gauge("pins", "Pins that keep parts of the log from being trimmed", self._count),)

    def pin(self, request: Request) -> None:
        """Pin the log from a position on, or renew a pin (20013).

        A renewal made for a range read may arrive late. The leader ignores it if the pin is gone.
        """
        header = decode_ext(PinHeader, request.ext)
        self._require_understanding(PutPin)
        if header.renewal:
            pin = self.proposed.lasting(header.name)
            if pin is None:
                request.respond()
            else:
                self._put(request, pin.name, pin.position, pin.lease_ms)
            return
        _check_name(header.name)
        if not 1 <= header.lease_millis <= MAX_LEASE_MS:
            raise InvalidParameter(f"leaseMillis {header.lease_millis} is outside 1..{MAX_LEASE_MS}")
        pins = self._machine.state.table(PINS)
        if len(pins) >= MAX_PINS and pins.get(header.name) is None:
            raise InvalidParameter(f"the group has {len(pins)} pins, the limit is {MAX_PINS}: release one")
        kept_from = self._machine.kept_from
        if header.position < kept_from:
            raise ReadTrimmed(f"position {header.position} is below {kept_from}, from which on the log is kept")
        self._put(request, header.name, header.position, header.lease_millis)

    def _put(self, request: Request, name: str, position: int, lease_ms: int) -> None:
        command = PutPin(name, position, lease_ms, self._env.wall_ms())
        self.proposed.put(command, partial(self._pinned, request, name))

    def _pinned(self, request: Request, name: str, error: LogError | None) -> None:
        pin = self._machine.state.table(PINS).get(name)
        if error is not None:
            self._requests.fail(request, error)
        elif pin is None:
            self._requests.fail(request, ServiceNotAvailable(f"pin {name} was given up meanwhile"))
        else:
            request.respond(ext=encode_ext(PinResponseHeader(pin.position, pin.expires_ms)))

    def unpin(self, request: Request) -> None:
        """Delete a pin (20014). A missing pin counts as deleted: the pin may be in flight, or a later leader may have
        it.
        """
        header = decode_ext(PinNameHeader, request.ext)
        _check_name(header.name)
        self._require_understanding(DeletePins)
        self.proposed.delete((header.name,), partial(self._unpinned, request))

    def _unpinned(self, request: Request, error: LogError | None) -> None:
        if error is None:
            request.respond()
        else:
            self._requests.fail(request, error)

    def _require_understanding(self, command: type[Command]) -> None:
        """Raise unless all members have reported that they understand the command. A member that has just joined has
        not reported its kinds yet.
        """
        if not self._machine.understood_by_all(command):
            raise ServiceNotAvailable("not every member of the group is known to understand pins: try again later")

    def _count(self) -> int:
        return len(self._machine.state.table(PINS))

    def list(self, request: Request) -> None:
        """Answer with all pins (20015)."""
        pins = sorted(self._machine.state.table(PINS), key=lambda pin: pin.name)
        rows = [PinRow(pin.name, pin.position, pin.lease_ms, pin.expires_ms) for pin in pins]
        self._requests.respond(request, encode_body(PinList(rows)))

    def renew_by_read(self, name: str) -> None:
        """Renew a pin that a read names, at intervals. A pin that is gone is not made again."""
        pin = self._machine.state.table(PINS).get(name)
        now = self._env.now()
        if pin is None:
            return
        pause_s = pin.lease_ms * RENEW_AFTER_SHARE / 1000
        if now - self._renewing.get(name, -pause_s) < pause_s:
            return
        self._renewing = {
            known: at for known, at in self._renewing.items() if self._machine.state.table(PINS).get(known)
        }
        self._renewing[name] = now
        header = PinHeader(pin.name, pin.position, pin.lease_ms, renewal=True)
        request = _own_request(self._group.node_id, header, now)
        if self._group.ready:
            self._requests.run(request)
        else:
            self._requests.pass_on(request)


def _check_name(name: str) -> None:
    """Raise `InvalidParameter` unless the name is valid for a pin."""
    if not 0 < len(name.encode()) <= MAX_PIN_NAME_BYTES:
        raise InvalidParameter(f"the pin's name has {len(name.encode())} bytes, 1 to {MAX_PIN_NAME_BYTES}")


class _OwnOrigin(WaitsCounted):
    """Origin of a request that the node itself makes and whose answer nobody needs."""

    is_forwarded: Final = False
    is_open: Final = True

    def __init__(self, node_id: str) -> None:
        self.address = HostAddress("127.0.0.1", 0)
        self.born_host = bytes(8)
        self.key = channel_key(node_id)
        self.client_ids: set[str] = set()
        self.is_trusted = True
        self.held = self.in_flight = self.forwards = self.forward_refused = self.forward_epoch = 0
        self.forwards_sent: set[int] = set()
        self.forward_target: str | None = None

    def answer(self, parts: Sequence[Buffer]) -> None:
        """Drop the answer."""

    def answer_frame(self, frame: bytes) -> None:
        """Drop the answer."""

    def answer_frames(self, frames: Sequence[bytes]) -> None:
        """Drop the answers."""

    def settle(self) -> None:
        """Do nothing: no client waits for this request."""

    def refuse(self, term: int) -> None:
        """Do nothing. This is never called, because only a forwarded request is refused."""


def _own_request(node_id: str, header: PinHeader, now: float) -> Request:
    command = RemotingCommand(RequestCode.PIN_LOG, opaque=1, flag=FLAG_ONEWAY, ext=encode_ext(header))
    return own_request(_OwnOrigin(node_id), command, now)
