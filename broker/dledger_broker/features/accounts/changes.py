"""Changes of accounts that this leader proposes: one at a time for each account, and one line for each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Final, TypeAlias

from dledger.errors import LogError
from dledger_broker.features.accounts.sealing import KeyFile
from dledger_broker.features.accounts.table import ACCOUNTS, AccountTable, PutAccount
from dledger_broker.kernel import rights
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.overlay import ChangesInFlight
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Needs, Route
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import InvalidParameter, NoPermission, RemotingError
from dledger_remoting.root_account import NODE, ROOT

MAX_ACCOUNTS: Final = 10_000
MAX_NAME_CHARS: Final = 128
MAX_SECRET_CHARS: Final = 1_024

Handler: TypeAlias = Callable[[Request], None]

_READING: Final = (rights.cluster(Action.GET, Action.LIST),)
_logger: Final = logging.getLogger(__name__)


class AccountChanges:
    """`keys` are None on a node without access control: it refuses everything, as it could keep no secret."""

    def __init__(self, machine: BrokerMachine, requests: Requests, keys: KeyFile | None) -> None:
        self.keys = keys
        self._machine = machine
        self._requests = requests
        self._in_flight = ChangesInFlight(machine.overlay)

    @property
    def table(self) -> AccountTable:
        """All accounts, as this node has applied them."""
        return self._machine.state.table(ACCOUNTS)

    def routes(self, changes: Mapping[RequestCode, Handler], reads: Mapping[RequestCode, Handler]) -> dict[int, Route]:
        """Routes of what changes accounts and of what reads them, all refused where access control is off.

        What changes accounts is for administrators: it makes administrators.
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
            if self.keys is None:
                raise NoPermission("access control is off on this node: set access_key_file")
            handle(request)

        return handled

    def sealed(self, secret: str | None, name: str) -> str | None:
        """The secret of an account as it is stored; None if none is said. Raises `InvalidParameter`."""
        if secret is None or not secret.strip():
            return None
        if len(secret) > MAX_SECRET_CHARS:
            raise InvalidParameter(f"the secret has {len(secret)} characters, the limit is {MAX_SECRET_CHARS}")
        return None if self.keys is None else self.keys.seal(secret, name)

    def new(self, name: str, sealed: str) -> PutAccount:
        """An account that is not there yet, without rights. Raises `InvalidParameter`."""
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
        """Propose what `make` makes of the account as it stands once earlier changes of it are applied, and answer when
        it is, or has failed.
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
        except RemotingError as error:
            self._requests.fail(request, error)
        else:
            self._in_flight.propose(name, command, done)
