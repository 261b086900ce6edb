"""Judge of a node that has no key file: it serves everybody while there is no account, and nobody else then.

It could check no signature. What it hands on to a leader is judged there.
"""

from __future__ import annotations

import logging
from typing import Final

from dledger_broker.features.accounts.table import ACCOUNTS, AccountTable
from dledger_broker.kernel.access import AccessRefused
from dledger_broker.kernel.requests import Principal, Request
from dledger_broker.kernel.rights import Demand
from dledger_broker.kernel.state import BrokerState

_WHY: Final = "this node has no access_key_file, and its broker group has accounts"
_REMEDY: Final = "set access_key_file as on the other nodes, and restart it"

_logger: Final = logging.getLogger(__name__)


class Keyless:
    """See `kernel.access.Judge`."""

    def __init__(self) -> None:
        self._is_told = False

    def keep_table(self, state: BrokerState) -> None:
        """The state is another one."""
        self._table: AccountTable = state.table(ACCOUNTS)

    @property
    def judges(self) -> bool:
        """See `Judge.judges`."""
        return len(self._table) > 0

    @property
    def obstacle(self) -> str | None:
        """See `Judge.obstacle`; logged once."""
        if not self.judges:
            self._is_told = False
            return None
        if not self._is_told:
            self._is_told = True
            _logger.error("event=access_key_file_missing reason=%r remedy=%r", _WHY, _REMEDY)
        return f"{_WHY}: it can judge no request; {_REMEDY}"

    def by_address(self, request: Request) -> Principal | None:
        """See `Judge.by_address`."""
        _ = request
        return None

    def by_signature(self, request: Request) -> Principal:
        """See `Judge.by_signature`."""
        _ = request
        raise self._refusal()

    def is_current(self, principal: Principal, address: str) -> bool:
        """See `Judge.is_current`."""
        _ = address
        return principal.is_node

    def require(self, principal: Principal, address: str, demand: Demand) -> None:
        """See `Judge.require`."""
        _ = principal, address, demand
        raise self._refusal()

    def require_admin(self, principal: Principal, address: str) -> None:
        """See `Judge.require_admin`."""
        _ = principal, address
        raise self._refusal()

    def _refusal(self) -> AccessRefused:
        return AccessRefused(self.obstacle or _WHY, certain=True)
