"""Requests about reminders: 9000 hands one in, 9001 tells how many there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from dledger.environment import Environment
from dledger.errors import LogError
from dledger_broker.kernel.jobs import Job
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Needs, Route
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.bodies import encode_body
from dledger_remoting.errors import InvalidParameter, TopicNotExist
from dledger_remoting.headers import decode_ext
from tests.broker.toy.job import RemindInTime
from tests.broker.toy.table import REMINDERS, PutReminder

REMIND: Final = 9000
REMINDER_COUNT: Final = 9001
MAX_DELAY_S: Final = 3600.0


class RemindHeader(msgspec.Struct, frozen=True, rename="camel"):
    """Ext fields of 9000. The request's body is the message's body."""

    topic: str
    delay_seconds: float


class ReminderCount(msgspec.Struct, frozen=True, rename="camel"):
    """Answer to 9001."""

    pending: int
    stored: int
    last_position: int


class Reminders(Part):
    """A node's part: requests, which only the leader answers, a gauge, and the job."""

    def __init__(self, machine: BrokerMachine, env: Environment, requests: Requests) -> None:
        self._machine = machine
        self._env = env
        self._requests = requests
        self._job = RemindInTime(machine, env)
        machine.on_state(self._keep_table)

    def _keep_table(self, state: BrokerState) -> None:
        self._table = state.table(REMINDERS)

    @property
    def routes(self) -> Mapping[int, Route]:
        return {
            REMIND: Route(self.remind, Needs.LEADER, CHANGES),
            REMINDER_COUNT: Route(self.count, Needs.CONFIRMED_LEADER, NO_EFFECT),
        }

    @property
    def gauges(self) -> Sequence[Gauge]:
        return (Gauge("reminders", "Reminders that are pending", self._pending),)

    @property
    def jobs(self) -> Sequence[Job]:
        return (self._job,)

    def _pending(self) -> int:
        return len(self._table.pending)

    def remind(self, request: Request) -> None:
        """Handle 9000, which is answered when every later leader knows of the reminder."""
        header = decode_ext(RemindHeader, request.ext)
        if not 0 <= header.delay_seconds <= MAX_DELAY_S:
            raise InvalidParameter(f"delaySeconds {header.delay_seconds} is outside 0..{MAX_DELAY_S:g}")
        if self._machine.topic(header.topic) is None:
            raise TopicNotExist(f"topic {header.topic} does not exist: create it first")
        due_ms = self._env.wall_ms() + int(header.delay_seconds * 1000)
        command = PutReminder(header.topic, bytes(request.body), due_ms)
        self._machine.stage_command(command, partial(self._taken, request))

    def _taken(self, request: Request, error: LogError | None) -> None:
        if error is None:
            request.respond()
        else:
            self._requests.fail(request, error)

    def count(self, request: Request) -> None:
        """Answer 9001 with the current counts."""
        table = self._table
        count = ReminderCount(len(table.pending), table.stored, table.last_position)
        self._requests.respond(request, encode_body(count))
