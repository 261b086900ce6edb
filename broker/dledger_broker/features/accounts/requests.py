"""Requests about accounts (3001 to 3005) and their rules (3006 to 3010), with RocketMQ's words. All on the leader."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from dledger_broker.features.accounts.policies import (
    account_of,
    policy_type_of,
    rules_of,
    told,
    with_rules,
    without_rules,
)
from dledger_broker.features.accounts.proposals import AccountProposals, Done
from dledger_broker.features.accounts.sealing import KeyFile
from dledger_broker.features.accounts.table import ACCOUNTS, AccountTable, DeleteAccount, PutAccount
from dledger_broker.kernel import rights
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Needs, Route
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
from dledger_remoting.root_account import ROOT

MAX_ACCOUNTS: Final = 10_000
MAX_NAME_CHARS: Final = 128
MAX_SECRET_CHARS: Final = 1_024
_SUPER: Final = "Super"
_NORMAL: Final = "Normal"
_ENABLE: Final = "enable"
_DISABLE: Final = "disable"
_READS: Final = (rights.cluster(Action.GET, Action.LIST),)

_logger: Final = logging.getLogger(__name__)


class AccountRequests(Part):
    """Makes, changes, deletes and lists accounts and their rules. `keys` are None on a node without access control:
    it refuses, as it could keep no secret.
    """

    def __init__(
        self, machine: BrokerMachine, requests: Requests, keys: KeyFile | None, refused: Callable[[], float]
    ) -> None:
        self._machine = machine
        self._requests = requests
        self._keys = keys
        self._refused = refused
        self._proposals = AccountProposals(machine)

    @property
    def routes(self) -> Mapping[int, Route]:
        """See `Part.routes`. What changes accounts is for administrators: it makes administrators."""
        changes: Mapping[int, Callable[[Request], None]] = {
            RequestCode.AUTH_CREATE_USER: self.create_user,
            RequestCode.AUTH_UPDATE_USER: self.update_user,
            RequestCode.AUTH_DELETE_USER: self.delete_user,
            RequestCode.AUTH_CREATE_ACL: self.put_rules,
            RequestCode.AUTH_UPDATE_ACL: self.put_rules,
            RequestCode.AUTH_DELETE_ACL: self.delete_rules,
        }
        reads: Mapping[int, Callable[[Request], None]] = {
            RequestCode.AUTH_GET_USER: self.user,
            RequestCode.AUTH_LIST_USER: self.users,
            RequestCode.AUTH_GET_ACL: self.rules,
            RequestCode.AUTH_LIST_ACL: self.all_rules,
        }
        return {
            **{code: Route(self._with_keys(handle), Needs.LEADER, CHANGES) for code, handle in changes.items()},
            **{
                code: Route(self._with_keys(handle), Needs.CONFIRMED_LEADER, NO_EFFECT, rights=_READS)
                for code, handle in reads.items()
            },
        }

    @property
    def gauges(self) -> Sequence[Gauge]:
        """See `Part.gauges`."""
        return (
            Gauge("accounts", "Accounts of access control", lambda: len(self._table)),
            Gauge("access_refusals", "Requests that access control has refused on this node", self._refused),
        )

    @property
    def _table(self) -> AccountTable:
        return self._machine.state.table(ACCOUNTS)

    def _with_keys(self, handle: Callable[[Request], None]) -> Callable[[Request], None]:
        def handled(request: Request) -> None:
            if self._keys is None:
                raise NoPermission("access control is off on this node: set access_key_file")
            handle(request)

        return handled

    # ---------------------------------------------------------------- accounts

    def create_user(self, request: Request) -> None:
        """3001: make an account."""
        name = _checked_name(decode_ext(UserHeader, request.ext).username)
        info = decode_body(UserInfo, request.body, "user")
        sealed = self._sealed(info.password, name)
        if sealed is None:
            raise InvalidParameter("password can not be blank")

        def make() -> Command:
            if self._table.get(name) is not None:
                raise NoPermission("The user is existed")
            if len(self._table) >= MAX_ACCOUNTS:
                raise InvalidParameter(f"there are {MAX_ACCOUNTS} accounts, which is the limit: delete some")
            return PutAccount(
                name, sealed, _is_super(info.user_type) or False, _is_enabled(info.user_status) is not False
            )

        self._proposals.change(name, make, self._finish(request, name))

    def update_user(self, request: Request) -> None:
        """3002: another secret, type or status; what is not said stays."""
        name = decode_ext(UserHeader, request.ext).username
        info = decode_body(UserInfo, request.body, "user")
        sealed, admin = self._sealed(info.password, name), _is_super(info.user_type)
        enabled = _is_enabled(info.user_status)

        def make() -> Command:
            old = self._put(name)
            return msgspec.structs.replace(
                old,
                sealed=old.sealed if sealed is None else sealed,
                admin=old.admin if admin is None else admin,
                enabled=old.enabled if enabled is None else enabled,
            )

        self._proposals.change(name, make, self._finish(request, name))

    def delete_user(self, request: Request) -> None:
        """3003: delete an account, there or not, with its rules."""
        name = decode_ext(UserHeader, request.ext).username
        if not name.strip():
            raise InvalidParameter("username can not be blank")
        self._proposals.change(name, partial(DeleteAccount, name), self._finish(request, name))

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

    def _sealed(self, secret: str | None, name: str) -> str | None:
        if secret is None or not secret.strip():
            return None
        if len(secret) > MAX_SECRET_CHARS:
            raise InvalidParameter(f"the secret has {len(secret)} characters, the limit is {MAX_SECRET_CHARS}")
        return None if self._keys is None else self._keys.seal(secret, name)

    # ---------------------------------------------------------------- rules

    def put_rules(self, request: Request) -> None:
        """3006, 3007: more rules, in place of those on the same resources."""
        name = account_of(decode_ext(SubjectHeader, request.ext).subject)
        new = rules_of(decode_body(AclInfo, request.body, "acl").policies)
        self._proposals.change(name, lambda: with_rules(self._subject(name), new), self._finish(request, name))

    def delete_rules(self, request: Request) -> None:
        """3008: the rules on a resource go, or all."""
        header = decode_ext(SubjectHeader, request.ext)
        name, policy_type = account_of(header.subject), policy_type_of(header.policy_type)

        def make() -> Command:
            old = self._subject(name)
            if not old.custom and not old.default:
                raise NoPermission("The acl is not exist.")
            return without_rules(old, policy_type, header.resource)

        self._proposals.change(name, make, self._finish(request, name))

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

    def _finish(self, request: Request, name: str) -> Done:
        """Answers when a change is applied, or has failed; one line for each that is applied."""

        def done(error: Exception | None) -> None:
            if error is None:
                _logger.info("event=account_changed by=%r code=%d account=%r", request.account, request.code, name)
                request.respond()
            else:
                self._requests.fail(request, error)

        return done


def _checked_name(name: str) -> str:
    """The name of an account that is to be made. Raises `InvalidParameter`."""
    if not name.strip():
        raise InvalidParameter("username can not be blank")
    if len(name) > MAX_NAME_CHARS or not name.isprintable() or any(map(str.isspace, name)):
        raise InvalidParameter(f"username {name[:64]!r}: expected up to {MAX_NAME_CHARS} characters without spaces")
    if name == ROOT:
        raise InvalidParameter(f"username {ROOT} is the account of who has the key file")
    return name


def _is_super(text: str | None) -> bool | None:
    return _one_of("userType", text, _SUPER, _NORMAL)


def _is_enabled(text: str | None) -> bool | None:
    return _one_of("userStatus", text, _ENABLE, _DISABLE)


def _one_of(what: str, text: str | None, yes: str, no: str) -> bool | None:
    """Whether a text says the one or the other; None if it says nothing. Raises `InvalidParameter`."""
    if not text:
        return None
    if text.lower() not in (yes.lower(), no.lower()):
        raise InvalidParameter(f"{what} {text[:64]!r}: expected {yes} or {no}")
    return text.lower() == yes.lower()


def _user_info(put: PutAccount) -> UserInfo:
    return UserInfo(put.name, None, _SUPER if put.admin else _NORMAL, _ENABLE if put.enabled else _DISABLE)
