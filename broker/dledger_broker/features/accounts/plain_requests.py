"""Requests about accounts in the form of RocketMQ 4, codes 50 to 54. The leader handles all of them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dledger_broker.config import BrokerConfig
from dledger_broker.features.accounts.changes import AccountChanges
from dledger_broker.features.accounts.plain import changed_by, patterns_of, plain_account
from dledger_broker.features.accounts.table import DeleteAccount, PutAccount, PutWhiteList
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.routes import Route
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.headers import decode_ext, encode_ext
from dledger_remoting.plain_accounts import (
    AclVersionHeader,
    PlainAccountHeader,
    PlainAccountNameHeader,
    PlainAccounts,
    WhiteListHeader,
)
from dledger_remoting.registration import DataVersion

WHITE_LIST = " "
"""Key by which changes of the global white list wait for each other. No account can have this name."""
ALL_ACCOUNTS = "accounts"
"""Name of the only file in the answer to 52. RocketMQ 4 has several account files, each with a version."""


class PlainAccountRequests:
    """Handler of requests in the form of RocketMQ 4. They manage the same accounts as the requests of RocketMQ 5.3."""

    def __init__(self, requests: Requests, changes: AccountChanges, config: BrokerConfig) -> None:
        self._requests = requests
        self._changes = changes
        self._config = config

    @property
    def routes(self) -> Mapping[int, Route]:
        """Return the routes of codes 50 to 54."""
        changes = {
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self.put,
            RequestCode.DELETE_ACL_CONFIG: self.delete,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self.put_white_list,
        }
        reads = {
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self.version,
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: self.all,
        }
        return self._changes.routes(changes, reads)

    def put(self, request: Request) -> None:
        """Handle 50: make an account, or change the fields that the request has."""
        header = decode_ext(PlainAccountHeader, request.ext)
        name = header.access_key
        sealed = self._changes.sealed(header.secret_key, name)
        # refuse an invalid request at once, before it waits for earlier changes of the account
        changed_by(header, PutAccount(name, ""))

        def make() -> Command:
            account = self._changes.table.get(name)
            if account is None and sealed is None:
                raise InvalidParameter(f"secretKey is missing: there is no account {name[:64]!r} yet")
            old = self._changes.new(name, sealed or "") if account is None else account.put
            return changed_by(header, old if sealed is None else msgspec.structs.replace(old, sealed=sealed))

        self._changes.propose(request, name, make)

    def delete(self, request: Request) -> None:
        """Handle 51: delete an account. Succeeds also if the account does not exist."""
        name = decode_ext(PlainAccountNameHeader, request.ext).access_key
        if not name.strip():
            raise InvalidParameter("accessKey is empty: name an account")
        self._changes.propose(request, name, lambda: DeleteAccount(name))

    def put_white_list(self, request: Request) -> None:
        """Handle 53: replace the global white list, the addresses that need no account."""
        patterns = patterns_of(decode_ext(WhiteListHeader, request.ext).global_white_addrs)
        self._changes.propose(request, WHITE_LIST, lambda: PutWhiteList(patterns))

    def version(self, request: Request) -> None:
        """Handle 52: answer with a version that grows with every change that this node has applied."""
        version = DataVersion(counter=self._changes.table.changes)
        config = self._config
        header = AclVersionHeader(
            msgspec.json.encode(version).decode(),
            msgspec.json.encode({ALL_ACCOUNTS: version}).decode(),
            config.broker_group,
            str(config.advertised),
            config.cluster,
        )
        request.respond(ext=encode_ext(header))

    def all(self, request: Request) -> None:
        """Handle 54: answer with all accounts, without their secrets."""
        table = self._changes.table
        accounts = [table.get(name) for name in table.names()]
        rows = [plain_account(account.put) for account in accounts if account is not None]
        self._requests.respond(request, msgspec.json.encode(PlainAccounts(list(table.white_list), rows)))
