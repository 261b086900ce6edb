"""Access: whether who sent a request may have what it asks for.

Everybody may everything until somebody judges (`Access.guard`). Then a request is admitted by the node that handles
it, from the rules that this node has applied: a node that hands it on does not judge it, and its header and body arrive
as the client signed them. What the first node alone can tell goes with it: that the client's address gives it an
account, that the request is the node's own.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

from dledger_broker.kernel.requests import Principal, Request
from dledger_broker.kernel.rights import Demand, Rights
from dledger_remoting.errors import NoPermission

MAX_LOGGED_CHARS: Final = 300

_logger: Final = logging.getLogger(__name__)


class AccessRefused(NoPermission):
    """Refused by access control. `certain`: whatever the rules are, so that no other node need be asked. `logged` says
    more than the client is told.
    """

    def __init__(self, remark: str, *, certain: bool = False, logged: str = "") -> None:
        super().__init__(remark)
        self.certain = certain
        self.logged = logged or remark


class Judge(Protocol):
    """Who knows accounts and rules. All methods raise `AccessRefused`."""

    def by_address(self, request: Request) -> Principal | None:
        """The account that the client's address gives to a request of this node's own client, if any."""

    def by_signature(self, request: Request) -> Principal:
        """The account that a request is signed for."""

    @property
    def judges(self) -> bool:
        """Whether requests are judged now."""

    @property
    def obstacle(self) -> str | None:
        """Why this node can judge nothing, if so."""

    def is_current(self, principal: Principal, address: str) -> bool:
        """Whether an account is what it was when a request from an address was taken for its own; raises if it may do
        nothing now.
        """

    def require(self, principal: Principal, address: str, demand: Demand) -> None:
        """An account has a right, from an address."""

    def require_admin(self, principal: Principal, address: str) -> None:
        """An account is an administrator's."""


class Access:
    """Access control of one node. `refused` counts requests that it refused."""

    def __init__(self) -> None:
        self.refused = 0
        self._judge: Judge | None = None

    def guard(self, judge: Judge) -> None:
        """Have every request judged from now on."""
        self._judge = judge

    @property
    def is_on(self) -> bool:
        """Whether requests are judged."""
        return self._judge is not None and self._judge.judges

    @property
    def obstacle(self) -> str | None:
        """Why this node can judge nothing, and so refuses everything, if so."""
        return None if self._judge is None else self._judge.obstacle

    def introduce(self, request: Request) -> None:
        """A client of this node has sent a request: note what its address gives it.

        Raises `AccessRefused` for one that names no account and has none: it need not be handed on.
        """
        if self._judge is not None and self.is_on:
            request.principal = self._judge.by_address(request)

    def admit(self, request: Request, rights: Rights) -> None:
        """Find out whose request it is, and whether it may have what it asks for. Raises `AccessRefused`, or what the
        names of its resources raise.
        """
        judge = self._judge
        if judge is None or not self.is_on:
            return
        principal = _principal(judge, request)
        if principal.is_node:
            return
        address = request.origin.address.ip
        for right in rights:
            if right.admin:
                judge.require_admin(principal, address)
            for demand in right.demands(request):
                judge.require(principal, address, demand.judged)

    def require(self, request: Request, demand: Demand) -> None:
        """A handler has found what a request is about. Raises `AccessRefused`, which does not tell what was found."""
        if self._judge is None or not self.is_on:
            return
        principal = _principal(self._judge, request)
        if principal.is_node:
            return
        address = request.origin.address.ip
        try:
            self._judge.require(principal, address, demand.judged)
        except AccessRefused as refusal:
            remark = (
                f"User:{principal.name} has no permission to access what the message at this place belongs to from "
                f"{address}. ({' or '.join(demand.actions)})"
            )
            raise AccessRefused(remark, certain=refusal.certain, logged=refusal.remark) from None

    def allows(self, request: Request, demand: Demand) -> bool:
        """Whether a request may have something that it did not ask for by name."""
        try:
            self.require(request, demand)
        except AccessRefused:
            return False
        return True

    def may(self, account: str, address: str, demand: Demand) -> bool:
        """Whether an account may have something that nobody has asked for, as what a broker asks its clients."""
        if self._judge is None or not self.is_on:
            return True
        try:
            self._judge.require(Principal(account), address, demand.judged)
        except NoPermission:
            return False
        return True

    def note_refusal(self, request: Request, refusal: AccessRefused) -> None:
        """One line for each refused request, not longer for what a client has put into it."""
        self.refused += 1
        _logger.warning(
            "event=access_refused client=%s code=%d refusal=%r",
            request.origin.address,
            request.code,
            refusal.logged[:MAX_LOGGED_CHARS],
        )


def _principal(judge: Judge, request: Request) -> Principal:
    """Whose request it is, by its signature once more if the account has changed since."""
    principal = request.principal
    if principal is None or not judge.is_current(principal, request.origin.address.ip):
        request.principal = principal = judge.by_signature(request)
    return principal
