"""Requests about accounts (3001 to 3005) and their rules (3006 to 3010), with RocketMQ's words. All on the leader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from dledger_broker.features.accounts.changes import AccountChanges
from dledger_broker.features.accounts.plain_requests import PlainAccountRequests
from dledger_broker.features.accounts.policies import (
    account_of,
    policy_type_of,
    rules_of,
    told,
    with_rules,
    without_rules,
)
from dledger_broker.features.accounts.table import AccountTable, DeleteAccount, PutAccount
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.parts import Gauge, Part
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.routes import Route
from dledger_remoting.accounts import (
    AclInfo,
    RuleFilterHeader,
    SubjectHeader,
    UserFilterHeader,
    UserHeader,
    UserInfo,
)
from dledger_remoting.bodies import decode_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.errors import InvalidParameter, NoPermission, RemotingError
from dledger_remoting.headers import decode_ext

_SUPER: Final = "Super"
_NORMAL: Final = "Normal"
_ENABLE: Final = "enable"
_DISABLE: Final = "disable"


class AccountRequests(Part):
    """Makes, changes, deletes and lists accounts and their rules; `refused` says what access control has refused."""

    def __init__(
        self, requests: Requests, changes: AccountChanges, plain: PlainAccountRequests, refused: Callable[[], float]
    ) -> None:
        self.changes = changes
        self._requests = requests
        self._plain = plain
        self._refused = refused

    @property
    def routes(self) -> Mapping[int, Route]:
        """See `Part.routes`."""
        changes = {
            RequestCode.AUTH_CREATE_USER: self.create_user,
            RequestCode.AUTH_UPDATE_USER: self.update_user,
            RequestCode.AUTH_DELETE_USER: self.delete_user,
            RequestCode.AUTH_CREATE_ACL: self.put_rules,
            RequestCode.AUTH_UPDATE_ACL: self.put_rules,
            RequestCode.AUTH_DELETE_ACL: self.delete_rules,
        }
        reads = {
            RequestCode.AUTH_GET_USER: self.user,
            RequestCode.AUTH_LIST_USER: self.users,
            RequestCode.AUTH_GET_ACL: self.rules,
            RequestCode.AUTH_LIST_ACL: self.all_rules,
        }
        return {**self._plain.routes, **self.changes.routes(changes, reads)}

    @property
    def gauges(self) -> Sequence[Gauge]:
        """See `Part.gauges`."""
        return (
            Gauge("accounts", "Accounts of access control", lambda: len(self._table)),
            Gauge("access_refusals", "Requests that access control has refused on this node", self._refused),
        )

    @property
    def _table(self) -> AccountTable:
        return self.changes.table

    # ---------------------------------------------------------------- accounts

    def create_user(self, request: Request) -> None:
        """3001: make an account."""
        name = decode_ext(UserHeader, request.ext).username
        info = decode_body(UserInfo, request.body, "user")
        sealed, admin, enabled = self._said(info, name)
        new = self.changes.new(name, sealed or "")
        if sealed is None:
            raise InvalidParameter("password can not be blank")

        def make() -> Command:
            if self._table.get(name) is not None:
                raise NoPermission("The user is existed")
            return msgspec.structs.replace(new, admin=bool(admin), enabled=enabled is not False)

        self.changes.propose(request, name, make)

    def update_user(self, request: Request) -> None:
        """3002: another secret, type or status; what is not said stays."""
        name = decode_ext(UserHeader, request.ext).username
        info = decode_body(UserInfo, request.body, "user")
        sealed, admin, enabled = self._said(info, name)

        def make() -> Command:
            old = self._put(name)
            return msgspec.structs.replace(
                old,
                sealed=old.sealed if sealed is None else sealed,
                admin=old.admin if admin is None else admin,
                enabled=old.enabled if enabled is None else enabled,
            )

        self.changes.propose(request, name, make)

    def delete_user(self, request: Request) -> None:
        """3003: delete an account, there or not, with its rules."""
        name = decode_ext(UserHeader, request.ext).username
        if not name.strip():
            raise InvalidParameter("username can not be blank")
        self.changes.propose(request, name, partial(DeleteAccount, name))

    def user(self, request: Request) -> None:
        """3004: an account, without its secret."""
        name = decode_ext(UserHeader, request.ext).username
        account = self._table.get(name)
        if account is None:
            raise RemotingError(f"User:{name} is not found.", code=ResponseCode.USER_NOT_EXIST)
        self._requests.respond(request, msgspec.json.encode(_user_info(account.put)))

    def users(self, request: Request) -> None:
        """3005: all accounts, without their secrets."""
        part = decode_ext(UserFilterHeader, request.ext).filter
        found = [self._put(name) for name in self._table.names() if part in name]
        self._requests.respond(request, msgspec.json.encode(list(map(_user_info, found))))

    def _put(self, name: str) -> PutAccount:
        account = self._table.get(name)
        if account is None:
            raise NoPermission("The user is not exist")
        return account.put

    def _said(self, info: UserInfo, name: str) -> tuple[str | None, bool | None, bool | None]:
        """What a request says of secret, type and status of an account; None is nothing. Raises `InvalidParameter`."""
        admin = _one_of("userType", info.user_type, _SUPER, _NORMAL)
        enabled = _one_of("userStatus", info.user_status, _ENABLE, _DISABLE)
        return self.changes.sealed(info.password, name), admin, enabled

    # ---------------------------------------------------------------- rules

    def put_rules(self, request: Request) -> None:
        """3006, 3007: more rules, in place of those on the same resources."""
        name = account_of(decode_ext(SubjectHeader, request.ext).subject)
        new = rules_of(decode_body(AclInfo, request.body, "acl").policies)
        self.changes.propose(request, name, lambda: with_rules(self._subject(name), new))

    def delete_rules(self, request: Request) -> None:
        """3008: the rules on a resource go, or all."""
        header = decode_ext(SubjectHeader, request.ext)
        name, policy_type = account_of(header.subject), policy_type_of(header.policy_type)

        def make() -> Command:
            old = self._subject(name)
            if not old.custom and not old.default:
                raise NoPermission("The acl is not exist.")
            return without_rules(old, policy_type, header.resource)

        self.changes.propose(request, name, make)

    def rules(self, request: Request) -> None:
        """3009: the rules of an account."""
        name = account_of(decode_ext(SubjectHeader, request.ext).subject)
        info = told(self._subject(name))
        if info is None:
            raise RemotingError(f"User:{name} has no rules.", code=ResponseCode.POLICY_NOT_EXIST)
        self._requests.respond(request, msgspec.json.encode(info))

    def all_rules(self, request: Request) -> None:
        """3010: the rules of all accounts."""
        header = decode_ext(RuleFilterHeader, request.ext)
        found: list[AclInfo] = []
        for name in self._table.names():
            info = told(self._put(name), header.resource_filter)
            if info is not None and header.subject_filter in (info.subject or ""):
                found.append(info)
        self._requests.respond(request, msgspec.json.encode(found))

    def _subject(self, name: str) -> PutAccount:
        account = self._table.get(name)
        if account is None:
            raise NoPermission(f"The subject of User:{name} is not exist.")
        return account.put


def _one_of(what: str, text: str | None, yes: str, no: str) -> bool | None:
    """Whether a text says the one or the other; None if it says nothing. Raises `InvalidParameter`."""
    if not text:
        return None
    if text.lower() not in (yes.lower(), no.lower()):
        raise InvalidParameter(f"{what} {text[:64]!r}: expected {yes} or {no}")
    return text.lower() == yes.lower()


def _user_info(put: PutAccount) -> UserInfo:
    return UserInfo(put.name, None, _SUPER if put.admin else _NORMAL, _ENABLE if put.enabled else _DISABLE)
