"""Requests about accounts as RocketMQ 4 has them: 50 to 54. All on the leader."""

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
"""What changes of the addresses that need no account wait for each other by: the name of no account."""
ALL_ACCOUNTS = "accounts"
"""Stands for the files of RocketMQ 4, each of which has a version."""


class PlainAccountRequests:
    """Makes, changes, deletes and lists accounts in the form of RocketMQ 4; they are the same accounts."""

    def __init__(self, requests: Requests, changes: AccountChanges, config: BrokerConfig) -> None:
        self._requests = requests
        self._changes = changes
        self._config = config

    @property
    def routes(self) -> Mapping[int, Route]:
        """See `Part.routes`."""
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
        """50: make an account, or change what is said of it."""
        header = decode_ext(PlainAccountHeader, request.ext)
        name = header.access_key
        sealed = self._changes.sealed(header.secret_key, name)
        changed_by(header, PutAccount(name, ""))  # a request that cannot be read waits for nothing

        def make() -> Command:
            known = self._changes.table.get(name)
            if known is None and sealed is None:
                raise InvalidParameter(f"secretKey is missing: there is no account {name[:64]!r} yet")
            old = self._changes.new(name, sealed or "") if known is None else known.put
            return changed_by(header, old if sealed is None else msgspec.structs.replace(old, sealed=sealed))

        self._changes.propose(request, name, make)

    def delete(self, request: Request) -> None:
        """51: delete an account, there or not."""
        name = decode_ext(PlainAccountNameHeader, request.ext).access_key
        if not name.strip():
            raise InvalidParameter("accessKey is empty: name an account")
        self._changes.propose(request, name, lambda: DeleteAccount(name))

    def put_white_list(self, request: Request) -> None:
        """53: all addresses that need no account from now on."""
        patterns = patterns_of(decode_ext(WhiteListHeader, request.ext).global_white_addrs)
        self._changes.propose(request, WHITE_LIST, lambda: PutWhiteList(patterns))

    def version(self, request: Request) -> None:
        """52: a number that grows with every change that this node has applied."""
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
        """54: all accounts, without their secrets."""
        table = self._changes.table
        accounts = [table.get(name) for name in table.names()]
        told = [plain_account(account.put) for account in accounts if account is not None]
        self._requests.respond(request, msgspec.json.encode(PlainAccounts(list(table.white_list), told)))
