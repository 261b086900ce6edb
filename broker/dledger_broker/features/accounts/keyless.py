"""Judge of a node without a key file: it refuses everybody once its broker group has access control, or an account.

Such a node cannot check signatures. A request that it forwards is judged by the leader. A node configured with
`access_control = "off"` ignores accounts, and serves everybody until its broker group has access control.
"""

from __future__ import annotations

import logging
from typing import Final

from dledger_broker.features.access.table import ACCESS, AccessTable
from dledger_broker.features.accounts.table import ACCOUNTS, AccountTable
from dledger_broker.kernel.access import AccessRefused
from dledger_broker.kernel.requests import Principal, Request
from dledger_broker.kernel.rights import Demand
from dledger_broker.kernel.state import BrokerState

_WHY: Final = "this node has no access_key_file, and its broker group has access control"
_REMEDY: Final = "set access_key_file as on the other nodes, and restart it"

_logger: Final = logging.getLogger(__name__)


class Keyless:
    """Judge of a node without a key file; implements `kernel.access.Judge`."""

    def __init__(self, *, is_said_off: bool = False) -> None:
        """`is_said_off` is True if the configuration explicitly turns access control off, and not by default."""
        self._is_configured_off = is_said_off
        self._is_logged = False

    def keep_table(self, state: BrokerState) -> None:
        """Use the tables of a new state."""
        self._table: AccountTable = state.table(ACCOUNTS)
        self._access: AccessTable = state.table(ACCESS)

    @property
    def judges(self) -> bool:
        """Return whether requests are judged, which here means refused."""
        return self._access.since > 0 or (bool(self._table.by_name) and not self._is_configured_off)

    @property
    def enforces(self) -> bool:
        """Return True: a node that cannot judge refuses."""
        return True

    @property
    def obstacle(self) -> str | None:
        """Return why this node cannot judge, or None if it need not. The reason is logged once."""
        if not self.judges:
            self._is_logged = False
            return None
        if not self._is_logged:
            self._is_logged = True
            _logger.error("event=access_key_file_missing reason=%r remedy=%r", _WHY, _REMEDY)
        return f"{_WHY}: it can judge no request; {_REMEDY}"

    def by_address(self, request: Request) -> Principal | None:
        """Return None: no white list is evaluated on this node."""
        _ = request
        return None

    def by_signature(self, request: Request) -> Principal:
        """Raise `AccessRefused`: no signature can be verified."""
        _ = request
        raise self._refusal()

    def is_current(self, principal: Principal, address: str) -> bool:
        """Return whether a request was made by a node itself. Clients' accounts cannot be checked."""
        _ = address
        return principal.is_node

    def require(self, principal: Principal, address: str, demand: Demand) -> None:
        """Raise `AccessRefused`: no rules are evaluated on this node."""
        _ = principal, address, demand
        raise self._refusal()

    def require_admin(self, principal: Principal, address: str) -> None:
        """Raise `AccessRefused`: no administrator can be verified."""
        _ = principal, address
        raise self._refusal()

    def _refusal(self) -> AccessRefused:
        return AccessRefused(self.obstacle or _WHY, certain=True)
