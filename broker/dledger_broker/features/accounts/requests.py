"""Requests about accounts (3001 to 3005) and their rules (3006 to 3010), with RocketMQ's error texts.

The leader handles all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from dledger_broker.features.accounts.sealing import newest, with_earlier
from dledger_broker.features.accounts.table import AccountTable, DeleteAccount, PutAccount
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.audit import SubjectState
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

_OF_ACCOUNTS: Final = (RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_UPDATE_USER, RequestCode.AUTH_DELETE_USER)
_OF_RULES: Final = (RequestCode.AUTH_CREATE_ACL, RequestCode.AUTH_UPDATE_ACL, RequestCode.AUTH_DELETE_ACL)
_PLAIN: Final = (RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, RequestCode.DELETE_ACL_CONFIG)
_SUPER: Final = "Super"
_NORMAL: Final = "Normal"
_KEPT: Final = "kept"
_DROPPED: Final = "dropped"
_ENABLE: Final = "enable"
_DISABLE: Final = "disable"


class AccountRequests(Part):
    """Part that makes, changes, deletes and lists accounts and their rules."""

    def __init__(
        self, requests: Requests, changes: AccountChanges, plain: PlainAccountRequests, access: Access
    ) -> None:
        self.changes = changes
        self._requests = requests
        self._plain = plain
        self._access = access

    @property
    def routes(self) -> Mapping[int, Route]:
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
    def audited(self) -> Mapping[int, SubjectState]:
        """Return what the audit log shows of changed accounts: everything but their secrets."""
        states: dict[int, SubjectState] = {}
        for code in _OF_ACCOUNTS:
            states[code] = lambda request: self._account_state(request.ext.get("username", ""))
        for code in _OF_RULES:
            states[code] = lambda request: self._account_state(account_of(request.ext.get("subject", "")))
        for code in _PLAIN:
            states[code] = lambda request: self._account_state(request.ext.get("accessKey", ""))
        states[RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG] = lambda _: list(self._table.white_list)
        return states

    def _account_state(self, name: str) -> object:
        account = self._table.get(name)
        if account is None:
            return {name: None}
        shown = {
            key: value for key, value in msgspec.structs.asdict(account.put).items() if key not in ("name", "sealed")
        }
        return {name: {**shown, "version": account.version}}

    @property
    def gauges(self) -> Sequence[Gauge]:
        return (
            Gauge("accounts", "Accounts of access control", lambda: len(self._table)),
            Gauge(
                "access_refusals", "Requests that access control has refused on this node", lambda: self._access.refused
            ),
            Gauge(
                "access_would_refuse",
                "Requests that access control would have refused, and only logged",
                lambda: self._access.would_refuse,
            ),
        )

    @property
    def _table(self) -> AccountTable:
        return self.changes.table

    # ---------------------------------------------------------------- accounts

    def create_user(self, request: Request) -> None:
        """Handle 3001: make an account."""
        name = decode_ext(UserHeader, request.ext).username
        info = decode_body(UserInfo, request.body, "user")
        sealed, admin, enabled = self._read_fields(info, name)
        new = self.changes.new(name, sealed or "")
        if sealed is None:
            raise InvalidParameter("password can not be blank")

        def make() -> Command:
            if self._table.get(name) is not None:
                raise NoPermission("The user is existed")
            return msgspec.structs.replace(new, admin=bool(admin), enabled=enabled is not False)

        self.changes.propose(request, name, make)

    def update_user(self, request: Request) -> None:
        """Handle 3002: change secret, type or status of an account. Fields that the request lacks stay.

        A request without any field seals the secret anew, with the first key of the key file. The former secret may
        stay valid beside a new secret, and be dropped later (`UserInfo.earlier_secret`).
        """
        name = decode_ext(UserHeader, request.ext).username
        info = decode_body(UserInfo, request.body, "user")
        sealed, admin, enabled = self._read_fields(info, name)
        keeps = _parse_choice("earlierSecret", info.earlier_secret, _KEPT, _DROPPED)

        def make() -> Command:
            old = self._put(name)
            if sealed is None and keeps is not None:
                if keeps:
                    raise InvalidParameter("earlierSecret is kept beside a new password, and none is said")
                return msgspec.structs.replace(old, sealed=newest(old.sealed))
            if sealed is None and admin is None and enabled is None:
                return msgspec.structs.replace(old, sealed=self.changes.resealed(old))
            return msgspec.structs.replace(
                old,
                sealed=old.sealed if sealed is None else with_earlier(sealed, old.sealed) if keeps else sealed,
                admin=old.admin if admin is None else admin,
                enabled=old.enabled if enabled is None else enabled,
            )

        self.changes.propose(request, name, make)

    def delete_user(self, request: Request) -> None:
        """Handle 3003: delete an account with its rules. Succeeds also if the account does not exist."""
        name = decode_ext(UserHeader, request.ext).username
        if not name.strip():
            raise InvalidParameter("username can not be blank")
        self.changes.propose(request, name, partial(DeleteAccount, name))

    def user(self, request: Request) -> None:
        """Handle 3004: answer with an account, without its secret."""
        name = decode_ext(UserHeader, request.ext).username
        account = self._table.get(name)
        if account is None:
            raise RemotingError(f"User:{name} is not found.", code=ResponseCode.USER_NOT_EXIST)
        self._requests.respond(request, msgspec.json.encode(_user_info(account.put)))

    def users(self, request: Request) -> None:
        """Handle 3005: answer with all accounts whose names contain the filter's text, without their secrets."""
        part = decode_ext(UserFilterHeader, request.ext).filter
        found = [self._put(name) for name in self._table.names() if part in name]
        self._requests.respond(request, msgspec.json.encode(list(map(_user_info, found))))

    def _put(self, name: str) -> PutAccount:
        account = self._table.get(name)
        if account is None:
            raise NoPermission("The user is not exist")
        return account.put

    def _read_fields(self, info: UserInfo, name: str) -> tuple[str | None, bool | None, bool | None]:
        """Return the sealed secret, type and status that a request sets; None for each that it lacks.

        Raises `InvalidParameter`.
        """
        admin = _parse_choice("userType", info.user_type, _SUPER, _NORMAL)
        enabled = _parse_choice("userStatus", info.user_status, _ENABLE, _DISABLE)
        return self.changes.sealed(info.password, name), admin, enabled

    # ---------------------------------------------------------------- rules

    def put_rules(self, request: Request) -> None:
        """Handle 3006 and 3007: put rules, replacing the rules on the same resources."""
        name = account_of(decode_ext(SubjectHeader, request.ext).subject)
        new = rules_of(decode_body(AclInfo, request.body, "acl").policies)
        self.changes.propose(request, name, lambda: with_rules(self._subject(name), new))

    def delete_rules(self, request: Request) -> None:
        """Handle 3008: delete the rules on a resource, or all rules of the account."""
        header = decode_ext(SubjectHeader, request.ext)
        name, policy_type = account_of(header.subject), policy_type_of(header.policy_type)

        def make() -> Command:
            old = self._subject(name)
            if not old.custom and not old.default:
                raise NoPermission("The acl is not exist.")
            return without_rules(old, policy_type, header.resource)

        self.changes.propose(request, name, make)

    def rules(self, request: Request) -> None:
        """Handle 3009: answer with the rules of an account."""
        name = account_of(decode_ext(SubjectHeader, request.ext).subject)
        info = told(self._subject(name))
        if info is None:
            raise RemotingError(f"User:{name} has no rules.", code=ResponseCode.POLICY_NOT_EXIST)
        self._requests.respond(request, msgspec.json.encode(info))

    def all_rules(self, request: Request) -> None:
        """Handle 3010: answer with the rules of all accounts that match the filters."""
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


def _parse_choice(what: str, text: str | None, yes: str, no: str) -> bool | None:
    """Return True for the text `yes`, False for `no`, None for no text. Raises `InvalidParameter` for other texts."""
    if not text:
        return None
    if text.lower() not in (yes.lower(), no.lower()):
        raise InvalidParameter(f"{what} {text[:64]!r}: expected {yes} or {no}")
    return text.lower() == yes.lower()


def _user_info(put: PutAccount) -> UserInfo:
    return UserInfo(put.name, None, _SUPER if put.admin else _NORMAL, _ENABLE if put.enabled else _DISABLE)
