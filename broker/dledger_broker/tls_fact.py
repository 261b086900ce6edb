"""TLS that the log of a node's group requires, kept in the node's directory for its next start.

The table is `features.access.table`. A node whose configuration lacks the TLS that its group has opens no port: a start
reads the file before anything else. A node that learns it while it runs ends.

The file `tls_of_group` holds the words `clients` and `peers`, as far as the group has TLS there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from dledger.environment import COLD, Environment
from dledger.store.disk import OsDisk, write_file_durably
from dledger_broker.config import BrokerConfig
from dledger_broker.errors import ConfigError
from dledger_broker.features.access.table import ACCESS
from dledger_broker.kernel.events import EventListener
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.trying_again import RETRY_S

FACT_FILE: Final = "tls_of_group"
"""File of a node's directory."""
CLIENTS: Final = "clients"
PEERS: Final = "peers"

_WAY_BACK: Final = (
    'to end TLS for the whole group, say tls = "off" in the file of each node, without tls_peer_ca_file '
    "(docs/operations/tls.md, 'A group keeps its TLS')"
)

_logger: Final = logging.getLogger(__name__)


def missing_tls(config: BrokerConfig, ports: Sequence[str]) -> str | None:
    """Return what a configuration lacks of the TLS that its group has at these `ports`, None if it lacks nothing."""
    if config.gives_tls_up:
        return None
    if CLIENTS in ports and config.tls == "off":
        return (
            "tls is missing, and the log of this node's group says that clients are served over TLS: say "
            f'tls = "enforcing", tls_cert_file and tls_key_file as on the other nodes; {_WAY_BACK}'
        )
    if PEERS in ports and config.tls_peer_ca_file is None:
        return (
            "tls_peer_ca_file is missing, and the log of this node's group says that its nodes speak TLS to each "
            f"other: name the authorities as on the other nodes; {_WAY_BACK}"
        )
    return None


def require_tls(config: BrokerConfig) -> tuple[str, ...]:
    """Return at which ports the group had TLS when the node ran last, as the file says. Blocks.

    Raises `ConfigError` if the configuration lacks it. A damaged file counts as TLS at the ports for clients.
    """
    try:
        text = (config.data_dir / FACT_FILE).read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise ConfigError(f"{config.data_dir / FACT_FILE} cannot be read: {error.strerror}") from error
    kept = ports = tuple(text.split()) if text else ("",)
    if not {CLIENTS, PEERS}.issuperset(kept):
        ports = (CLIENTS,)  # a damaged file opens no port for clients; it is written anew from the log
    missing = missing_tls(config, ports)
    if missing is not None:
        raise ConfigError(missing)
    if ports and config.gives_tls_up:
        _logger.warning("event=tls_given_up node=%s consequence='this node speaks plainly'", config.node_id)
    return kept


class TlsFact(EventListener):
    """Follower of a running node's log. It keeps the file, which holds `kept`, and calls `fail` once if TLS is missing
    here.
    """

    def __init__(
        self,
        config: BrokerConfig,
        machine: BrokerMachine,
        env: Environment,
        disk: OsDisk,
        kept: tuple[str, ...],
        fail: Callable[[ConfigError], None],
    ) -> None:
        self._config = config
        self._machine = machine
        self._env = env
        self._disk = disk
        self._fail: Callable[[ConfigError], None] | None = fail
        self._kept = kept
        self._is_writing = False
        machine.on_state(self._on_state)

    def _on_state(self, state: BrokerState) -> None:
        """Check a new state with the fact. Ignore a snapshot without the fact: the log behind it may have the fact."""
        if _ports(state):
            self._env.call_soon(self._check_ports)

    def members_changed(self) -> None:
        self._check_ports()

    def _check_ports(self) -> None:
        ports = _ports(self._machine.state)
        missing = missing_tls(self._config, ports)
        if missing is not None and self._fail is not None:
            _logger.error("event=tls_missing reason=%r", missing)
            self._fail(ConfigError(missing))
            self._fail = None
        self._keep(ports)

    def _keep(self, ports: tuple[str, ...]) -> None:
        if ports == self._kept or self._is_writing:
            return
        self._is_writing = True

        def write() -> None:
            write_file_durably(self._disk, FACT_FILE, " ".join(ports).encode("ascii") + b"\n")

        def written(error: BaseException | None) -> None:
            self._is_writing = False
            if error is None:
                self._kept = ports
                self._check_ports()
            else:
                _logger.warning("event=tls_fact_not_kept error=%r again_s=%.0f", str(error), RETRY_S)
                self._env.call_later(RETRY_S, self._check_ports)

        self._env.run_blocking(COLD, write, written)


def _ports(state: BrokerState) -> tuple[str, ...]:
    """Return the ports at which the group has TLS."""
    table = state.table(ACCESS)
    return tuple(name for name, since in ((CLIENTS, table.tls_since), (PEERS, table.peer_tls_since)) if since)
