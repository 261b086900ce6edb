"""Administration of accounts and their rights on the brokers of a cluster with access control."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import msgspec

from dledger_remoting.accounts import SUBJECT_PREFIX, AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from dledger_remoting.codes import RequestCode
from dledger_remoting.headers import encode_ext
from dledger_remoting.plain_accounts import PlainAccountHeader, WhiteListHeader
from dledger_remoting.signatures import Credentials

from .administration.cluster_calls import Opening, decode
from .arguments import checked
from .tls import Tls

_ADMIN_TYPE: Final = "Super"
_NORMAL_TYPE: Final = "Normal"
_EARLIER_KEPT: Final = "kept"
_EARLIER_DROPPED: Final = "dropped"
_STATUS_TEXTS: Final = {True: "enable", False: "disable"}


class AccountInfo(msgspec.Struct, frozen=True):
    """An account, as one broker group has it."""

    name: str
    is_admin: bool
    is_enabled: bool


class AccessRule(msgspec.Struct, frozen=True):
    """A rule: `resource` is `Topic:NAME`, `Group:NAME` or `Cluster:NAME`, where NAME may end with `*`.

    `sources` are the addresses to which the rule applies, none for all. A rule with `is_default` applies where no other
    rule does.
    """

    resource: str
    actions: tuple[str, ...]
    sources: tuple[str, ...] = ()
    allow: bool = True
    is_default: bool = False


@checked
class AccountAdmin:
    """Administrator of accounts and their rules on all broker groups. Use it as an async context manager.

        async with AccountAdmin("127.0.0.1:9876", Credentials("dledger.root", secret)) as admin:
            await admin.create("orders-app", secret)
            await admin.grant("orders-app", AccessRule("Topic:orders", ("Pub",)))

    Each broker group keeps accounts of its own, so each change is sent to all groups. A change that fails may have
    taken effect on some of them; it can be repeated. Requests raise the errors of `Admin`'s requests.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        credentials: Credentials,
        *,
        timeout: float = 10.0,
        tls: Tls | None = None,
    ) -> None:
        self._opening = Opening("AccountAdmin", name_servers, timeout, credentials, tls)

    async def start(self) -> None:
        """Open for requests."""
        self._opening.start()

    async def close(self) -> None:
        """Close all connections."""
        await self._opening.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def create(self, name: str, secret: str, *, is_admin: bool = False) -> None:
        """Create an account. Raises `RefusedError` if it exists."""
        info = UserInfo(name, secret, _ADMIN_TYPE if is_admin else _NORMAL_TYPE)
        await self._ask_leaders(RequestCode.AUTH_CREATE_USER, {"username": name}, msgspec.json.encode(info))

    async def put_plain(self, account: PlainAccountHeader) -> None:
        """Create or change an account in RocketMQ 4's form. Its permissions become rules."""
        await self._ask_leaders(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, encode_ext(account))

    async def put_white_list(self, addresses: Sequence[str]) -> None:
        """Set the addresses from which clients need no account to send and consume."""
        header = WhiteListHeader(",".join(addresses))
        await self._ask_leaders(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, encode_ext(header))

    async def change(
        self, name: str, *, secret: str | None = None, is_enabled: bool | None = None, keeps_earlier: bool = False
    ) -> None:
        """Give an account another secret or status; the old one counts no longer, also for clients that run.

        With `keeps_earlier` the secret before counts beside the new one until `drop_earlier`, or the next secret.
        """
        status = None if is_enabled is None else _STATUS_TEXTS[is_enabled]
        info = UserInfo(name, secret, None, status, _EARLIER_KEPT if keeps_earlier else None)
        await self._ask_leaders(RequestCode.AUTH_UPDATE_USER, {"username": name}, msgspec.json.encode(info))

    async def drop_earlier(self, name: str) -> None:
        """Have the newest secret of an account count alone."""
        info = UserInfo(name, earlier_secret=_EARLIER_DROPPED)
        await self._ask_leaders(RequestCode.AUTH_UPDATE_USER, {"username": name}, msgspec.json.encode(info))

    async def reseal(self, name: str) -> None:
        """Have an account's secret sealed again, with the first key of the brokers' key file. The secret stays the
        same.

        Raises `RefusedError` if the file lacks the key with which it is sealed now.
        """
        await self._ask_leaders(RequestCode.AUTH_UPDATE_USER, {"username": name}, msgspec.json.encode(UserInfo(name)))

    async def delete(self, name: str) -> None:
        """Delete an account with its rules. It need not exist."""
        await self._ask_leaders(RequestCode.AUTH_DELETE_USER, {"username": name})

    async def accounts(self) -> dict[str, list[AccountInfo]]:
        """Return all accounts of each broker group."""
        answers = await self._ask_leaders(RequestCode.AUTH_LIST_USER, {"filter": ""})
        return {
            group: [
                AccountInfo(user.username or "", user.user_type == _ADMIN_TYPE, user.user_status == _STATUS_TEXTS[True])
                for user in decode(list[UserInfo], body)
            ]
            for group, body in answers.items()
        }

    async def grant(self, name: str, rule: AccessRule) -> None:
        """Give an account a rule. It replaces the account's rule on the same resource."""
        entry = PolicyEntryInfo(
            rule.resource, list(rule.actions), list(rule.sources), "Allow" if rule.allow else "Deny"
        )
        policy = PolicyInfo("Default" if rule.is_default else "Custom", [entry])
        subject = SUBJECT_PREFIX + name
        body = msgspec.json.encode(AclInfo(subject, [policy]))
        await self._ask_leaders(RequestCode.AUTH_UPDATE_ACL, {"subject": subject}, body)

    async def revoke(self, name: str, resource: str | None = None, *, is_default: bool = False) -> None:
        """Remove an account's rule on a resource, or all of its rules. Raises `RefusedError` if it has none."""
        ext = {"subject": SUBJECT_PREFIX + name, "policyType": "Default" if is_default else "Custom"}
        await self._ask_leaders(RequestCode.AUTH_DELETE_ACL, ext | ({} if resource is None else {"resource": resource}))

    async def rules(self) -> dict[str, dict[str, list[AccessRule]]]:
        """Return the rules of all accounts, by broker group and account."""
        answers = await self._ask_leaders(RequestCode.AUTH_LIST_ACL, {})
        return {
            group: {
                (acl.subject or "").removeprefix(SUBJECT_PREFIX): [
                    rule for policy in acl.policies or () for rule in _decode_rules(policy)
                ]
                for acl in decode(list[AclInfo], body)
            }
            for group, body in answers.items()
        }

    async def _ask_leaders(self, code: int, ext: dict[str, str], body: bytes = b"") -> dict[str, bytes]:
        """Return the bodies of the answers of all broker groups' leaders."""
        calls = self._opening.calls
        answers = await calls.ask_leaders(await calls.group_names(None), code, ext, body)
        return {name: answer.body for name, answer in answers.items()}


def _decode_rules(policy: PolicyInfo) -> list[AccessRule]:
    return [
        AccessRule(
            entry.resource or "",
            tuple(entry.actions or ()),
            tuple(entry.source_ips or ()),
            entry.decision != "Deny",
            policy.policy_type == "Default",
        )
        for entry in policy.entries or ()
    ]
