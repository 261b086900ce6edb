"""Proposals of account changes on the leader: one at a time for each account, and one log line for each change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Final, TypeAlias

from dledger.errors import LogError
from dledger_broker.features.accounts.sealing import KeyFile, SealError
from dledger_broker.features.accounts.table import ACCOUNTS, AccountTable, PutAccount
from dledger_broker.kernel import rights
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.overlay import ChangesInFlight
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Needs, Route
from dledger_remoting.accounts import NODE, ROOT
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import InvalidParameter, NoPermission, RemotingError

MAX_ACCOUNTS: Final = 10_000
MAX_NAME_CHARS: Final = 128
MAX_SECRET_CHARS: Final = 1_024

Handler: TypeAlias = Callable[[Request], None]

_READING: Final = (rights.cluster(Action.GET, Action.LIST),)
_logger: Final = logging.getLogger(__name__)


class AccountChanges:
    """Proposer of account changes. It also makes the routes of requests about accounts.

    `command_of` returns the command that puts an account, or raises `RemotingError`. `keys` is None on a node without a
    key file. Such a node refuses all these requests, because it cannot seal a secret.
    """

    def __init__(self, machine: BrokerMachine, requests: Requests, access: Access, keys: KeyFile | None) -> None:
        self.keys = keys
        self.command_of: Callable[[PutAccount], Command] = _as_it_is
        self._access = access
        self._machine = machine
        self._requests = requests
        self._in_flight = ChangesInFlight(machine.overlay)

    @property
    def table(self) -> AccountTable:
        """Return all accounts, as this node has applied them."""
        return self._machine.state.table(ACCOUNTS)

    def routes(self, changes: Mapping[RequestCode, Handler], reads: Mapping[RequestCode, Handler]) -> dict[int, Route]:
        """Return the routes of requests that change accounts and of requests that read them.

        All are refused where access control is off. Only administrators may change accounts, since a change can make an
        account an administrator.
        """
        return {
            **{code: Route(self._with_keys(handle), Needs.LEADER, CHANGES) for code, handle in changes.items()},
            **{
                code: Route(self._with_keys(handle), Needs.CONFIRMED_LEADER, NO_EFFECT, rights=_READING)
                for code, handle in reads.items()
            },
        }

    def _with_keys(self, handle: Handler) -> Handler:

        @wraps(handle)
        def handled(request: Request) -> None:
            if self.keys is None or not self._access.judges:
                raise NoPermission(
                    "access control is off on this node: set access_key_file, and access_control to log or on"
                )
            handle(request)

        return handled

    def sealed(self, secret: str | None, name: str) -> str | None:
        """Return a secret, sealed for storage; None if the request has no secret. Raises `InvalidParameter`."""
        if secret is None or not secret.strip():
            return None
        if len(secret) > MAX_SECRET_CHARS:
            raise InvalidParameter(f"the secret has {len(secret)} characters, the limit is {MAX_SECRET_CHARS}")
        return None if self.keys is None else self.keys.seal(secret, name)

    def resealed(self, put: PutAccount) -> str:
        """Return the secrets of an account, sealed with the first key of the key file.

        Raises `InvalidParameter` if the key file lacks a key that they are sealed with.
        """
        keys = self.keys
        if keys is None or keys.is_sealed_last(put.sealed):
            return put.sealed
        try:
            return keys.reseal(put.sealed, put.name)
        except SealError as error:
            raise InvalidParameter(f"{error}: give the account another secret (dledger account rotate)") from error

    def new(self, name: str, sealed: str) -> PutAccount:
        """Return a new account without rights. Raises `InvalidParameter`."""
        if not name.strip():
            raise InvalidParameter("username can not be blank")
        if len(name) > MAX_NAME_CHARS or not name.isprintable() or any(map(str.isspace, name)):
            raise InvalidParameter(f"username {name[:64]!r}: expected up to {MAX_NAME_CHARS} characters without spaces")
        if name in (ROOT, NODE):
            raise InvalidParameter(f"username {name} is an account of who has the key file")
        if len(self.table) >= MAX_ACCOUNTS:
            raise InvalidParameter(f"there are {MAX_ACCOUNTS} accounts, which is the limit: delete some")
        return PutAccount(name, sealed)

    def propose(self, request: Request, name: str, make: Callable[[], Command]) -> None:
        """Propose the command that `make` returns, and answer once the command is applied or has failed.

        `make` is called after earlier changes of the same account are applied, so it sees their result.
        """

        def done(error: LogError | None) -> None:
            if error is None:
                _logger.info("event=account_changed by=%r code=%d account=%r", request.account, request.code, name)
                request.respond()
            else:
                self._requests.fail(request, error)

        if self._in_flight.wait(name, lambda _: self.propose(request, name, make)):
            return
        try:
            command = make()
            if isinstance(command, PutAccount):
                command = self.command_of(command)
        except RemotingError as error:
            self._requests.fail(request, error)
        else:
            self._in_flight.propose(name, command, done)


def _as_it_is(account: PutAccount) -> Command:
    """Return the command that is the account itself: the default of `command_of`."""
    return account
