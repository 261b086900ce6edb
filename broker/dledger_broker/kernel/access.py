"""Access control: decides whether the sender of a request has the rights that it needs.

Everybody may do everything until `Access.guard` sets a judge. Then the node that handles a request admits it, by the
rules that this node has applied. A node that forwards a request does not judge it, and forwards header and body as the
client signed them. It adds two facts that only the client's own node knows. These are the account that the client's
address gives it, and whether the request is the node's own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from dledger_base.telling import Refusals
from dledger_broker.kernel.requests import Principal, Request
from dledger_broker.kernel.rights import Demand, Rights
from dledger_remoting.errors import NoPermission, RemotingError

_logger: Final = logging.getLogger(__name__)


class AccessRefused(NoPermission):
    """Refusal by access control. `certain`: the refusal does not depend on the applied rules, so the request need not
    be forwarded.

    `logged` is the text for the log, which says more than the text for the client.
    """

    def __init__(self, remark: str, *, certain: bool = False, logged: str = "") -> None:
        super().__init__(remark)
        self.certain = certain
        self.logged = logged or remark


class Judge(Protocol):
    """Judge of requests by accounts and rules. All methods raise `AccessRefused`.

    An `address` is that of the connection. If a proxy speaks for the account, the address decides about the rights of
    the proxy. The account's own rights are checked by the address that the proxy names.
    """

    def by_address(self, request: Request) -> Principal | None:
        """Return the account that the client's address gives to a request of this node's own client, or None."""

    def by_signature(self, request: Request) -> Principal:
        """Return the account that a request is signed for."""

    @property
    def judges(self) -> bool:
        """True if requests are judged now."""

    @property
    def enforces(self) -> bool:
        """True if the requests that are judged wrong are refused, and not only logged."""

    @property
    def obstacle(self) -> str | None:
        """The reason why this node cannot judge requests, None if it can."""

    def is_current(self, principal: Principal, address: str) -> bool:
        """Return whether an account is unchanged since a request from an address was found to be its own.

        Raises `AccessRefused` if the account may do nothing now.
        """

    def require(self, principal: Principal, address: str, demand: Demand) -> None:
        """Check that an account has a right, from an address."""

    def require_admin(self, principal: Principal, address: str) -> None:
        """Check that an account is an administrator's."""


ALWAYS_JUDGED: Final = frozenset({*range(50, 55), *range(3001, 3011)})
"""Codes of requests about accounts and rules. They are refused even while other refusals are only logged."""


class Access:
    """Access control of one node.

    `refused` counts refused requests, `would_refuse` requests whose refusal it only logged.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.refused = 0
        self.would_refuse = 0
        self._refusal_log = Refusals(_logger, now)
        self._judge: Judge | None = None

    def guard(self, judge: Judge) -> None:
        """Have `judge` judge every request from now on."""
        self._judge = judge

    @property
    def judges(self) -> bool:
        """True if requests are judged, also if refusals are only logged."""
        return self._judge is not None and self._judge.judges

    @property
    def is_on(self) -> bool:
        """True if requests are judged and refused."""
        return self._judge is not None and self._judge.judges and self._judge.enforces

    @property
    def obstacle(self) -> str | None:
        """The reason why this node cannot judge requests and refuses all of them. None if it can judge."""
        return None if self._judge is None else self._judge.obstacle

    def introduce(self, request: Request) -> None:
        """Note the account that the client's address gives to a request of this node's own client.

        Raises `AccessRefused` for a request that names no account and gets none from its address. That request need not
        be forwarded.
        """
        if self._judge is None or not self.judges:
            return
        try:
            request.principal = self._judge.by_address(request)
        except AccessRefused:
            if self._refuses(request):
                raise  # otherwise the node that admits it logs the refusal

    def admit(self, request: Request, rights: Rights) -> None:
        """Find the account of a request, and check its rights. Raises `AccessRefused`, or an error in the names of its
        resources.
        """
        judge = self._judge
        if judge is None or not self.judges:
            return
        try:
            _admit(judge, request, rights)
        except RemotingError as refusal:
            if self._refuses(request):
                raise
            self._note_would_refuse(request, refusal)

    def require(self, request: Request, demand: Demand) -> None:
        """Check a right on a resource that the handler has found. Raises `AccessRefused`, which does not name the
        resource.
        """
        judge = self._judge
        if judge is None or not self.judges:
            return
        try:
            _require(judge, request, demand)
        except RemotingError as refusal:
            if self._refuses(request):
                raise
            self._note_would_refuse(request, refusal)

    def _refuses(self, request: Request) -> bool:
        return self.is_on or request.code in ALWAYS_JUDGED

    def is_admin(self, request: Request) -> bool:
        """Return whether a request is an administrator's, as far as this node knows."""
        if self._judge is None or request.principal is None:
            return False
        try:
            self._judge.require_admin(request.principal, request.origin.address.ip)
        except AccessRefused:
            return False
        return True

    def allows(self, request: Request, demand: Demand) -> bool:
        """Return whether a request may have something that it did not ask for by name."""
        try:
            self.require(request, demand)
        except AccessRefused:
            return False
        return True

    def may(self, principal: Principal, address: str, demand: Demand) -> bool:
        """Return whether an account may have something that it did not ask for, for example a request of the broker to
        its client.

        An account given by an address is checked again, because the white list may have lost that address.
        """
        if self._judge is None or not self.is_on:
            return True
        try:
            if principal.by_address and not self._judge.is_current(principal, address):
                return False
            self._judge.require(principal, address, demand.judged)
        except NoPermission:
            return False
        return True

    def note_refusal(self, request: Request, refusal: AccessRefused) -> None:
        """Count a refused request. Log it unless there are too many."""
        self.refused += 1
        self._log_refusal("access_refused", request, refusal.logged)

    def _note_would_refuse(self, request: Request, refusal: RemotingError) -> None:
        self.would_refuse += 1
        logged = refusal.logged if isinstance(refusal, AccessRefused) else refusal.remark
        self._log_refusal("access_would_refuse", request, logged)

    def _log_refusal(self, event: str, request: Request, why: str) -> None:
        address = request.client_address
        self._refusal_log.tell(event, address.ip, request.claimed_account, f"{address} code={request.code}", why)


def _admit(judge: Judge, request: Request, rights: Rights) -> None:
    principal = _principal(judge, request)
    if principal.is_node:
        return
    address = request.origin.address.ip
    for right in rights:
        if right.admin:
            judge.require_admin(principal, address)
        for demand in right.demands(request):
            judge.require(principal, address, demand.judged)


def _require(judge: Judge, request: Request, demand: Demand) -> None:
    principal = _principal(judge, request)
    if principal.is_node:
        return
    address = request.origin.address.ip
    try:
        judge.require(principal, address, demand.judged)
    except AccessRefused as refusal:
        remark = (
            f"User:{principal.name} has no permission to access what the message at this place belongs to from "
            f"{request.client_address.ip}. ({' or '.join(demand.actions)})"
        )
        raise AccessRefused(remark, certain=refusal.certain, logged=refusal.remark) from None


def _principal(judge: Judge, request: Request) -> Principal:
    """Return the account of a request. If the account has changed since the last check, the signature is checked
    again.
    """
    principal = request.principal
    if principal is None or not judge.is_current(principal, request.origin.address.ip):
        request.principal = principal = judge.by_signature(request)
    return principal
