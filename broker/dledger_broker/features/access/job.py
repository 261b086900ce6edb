"""Leader job that records whether the broker group has access control and TLS, once all members agree.

The configuration of a single node must neither open nor close a broker group. A key file that is missing at a start
would turn access control off. A single node with a key file would refuse requests that other nodes serve.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from dledger.errors import LogError
from dledger_base.tls_keys import ENFORCING
from dledger_broker.config import BrokerConfig
from dledger_broker.features.access.table import (
    ACCESS,
    ACCESS_COMMANDS,
    TURN_OFF,
    TURN_ON,
    TURN_PEER_TLS_ON,
    TURN_TLS_OFF,
    TURN_TLS_ON,
    AccessTable,
)
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.trying_again import RETRY_S

_CHANGES: Final = {
    TURN_ON: ("access_control_changed", "on", "clients"),
    TURN_OFF: ("access_control_changed", "off", "clients"),
    TURN_TLS_ON: ("tls_changed", "on", "clients"),
    TURN_PEER_TLS_ON: ("tls_changed", "on", "peers"),
    TURN_TLS_OFF: ("tls_changed", "off", "all"),
}
"""Event, state and ports in the log line of each change."""

_logger: Final = logging.getLogger(__name__)


def withheld_kinds(config: BrokerConfig) -> tuple[int, ...]:
    """Return the command kinds that a node does not advertise, because its configuration does not want them."""
    configured = _configured_kinds(config)
    return tuple(kind for kind in ACCESS_COMMANDS if kind not in configured)


def _configured_kinds(config: BrokerConfig) -> list[int]:
    kinds = []
    if config.access_mode == "on":
        kinds.append(TURN_ON)
    elif config.access_control == "off":
        kinds.append(TURN_OFF)
    if config.tls == ENFORCING:
        kinds += [TURN_TLS_ON] if config.tls_peer_ca_file is None else [TURN_TLS_ON, TURN_PEER_TLS_ON]
    elif config.gives_tls_up:
        kinds.append(TURN_TLS_OFF)
    return kinds


def _is_recorded(table: AccessTable, kind: int) -> bool:
    """Return whether the log says already what a command of this kind would say."""
    return {
        TURN_ON: table.since > 0,
        TURN_OFF: table.since == 0,
        TURN_TLS_ON: table.tls_since > 0,
        TURN_PEER_TLS_ON: table.peer_tls_since > 0,
        TURN_TLS_OFF: table.tls_since == table.peer_tls_since == 0,
    }[kind]


class AccessJob:
    """Leader job that compares the recorded state with the configuration every five seconds.

    Implements `dledger_broker.kernel.jobs.Job`.
    """

    name: Final = "access"

    def __init__(self, machine: BrokerMachine, config: BrokerConfig) -> None:
        self._machine = machine
        self._configured_kinds = _configured_kinds(config)

    def run(self, handle: JobHandle) -> None:
        """Propose the change that all members want, and call itself again after `RETRY_S`."""
        handle.call_later(RETRY_S, partial(self.run, handle))
        members = [member.node_id for member in self._machine.log.membership.members]
        for kind in self._configured_kinds:
            if _is_recorded(self._machine.state.table(ACCESS), kind):
                continue
            if self._machine.state.members.understood_by_all(kind, members):
                handle.stage_command(ACCESS_COMMANDS[kind](), partial(_settled, kind), privileged=True)


def _settled(kind: int, error: LogError | None) -> None:
    """Log a change that was recorded. A refused change is tried again by the next `run`."""
    if error is None:
        _logger.warning("event=%s state=%s ports=%s reason='all members say so'", *_CHANGES[kind])
