"""Administration of accounts: who may do what on the brokers of a cluster, where access control is on."""

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

from .arguments import checked
from .cluster_calls import Opening, decode
from .tls import Tls

_ADMINISTRATOR: Final = "Super"
_NORMAL: Final = "Normal"
_STATUS: Final = {True: "enable", False: "disable"}


class AccountInfo(msgspec.Struct, frozen=True):
    """An account, as one broker group has it."""

    name: str
    is_admin: bool
    is_enabled: bool


class AccessRule(msgspec.Struct, frozen=True):
    """A rule: `resource` is `Topic:NAME`, `Group:NAME` or `Cluster:NAME`, where NAME may end with `*`. `sources` are
    the addresses from which it counts, none for all. `is_default`: it counts where no other rule says anything.
    """

    resource: str
    actions: tuple[str, ...]
    sources: tuple[str, ...] = ()
    allow: bool = True
    is_default: bool = False


@checked
class AccountAdmin:
    """Accounts and their rules on all broker groups; use it as an async context manager.

        async with AccountAdmin("127.0.0.1:9876", Credentials("dledger.root", secret)) as admin:
            await admin.create("orders-app", secret)
            await admin.grant("orders-app", AccessRule("Topic:orders", ("Pub",)))

    Each group keeps accounts of its own: a change is asked of all, and one that fails may be made on some. It may be
    repeated. Requests raise what those of `Admin` do.
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
        """Make an account. Raises `RefusedError` if there is one."""
        info = UserInfo(name, secret, _ADMINISTRATOR if is_admin else _NORMAL)
        await self._ask(RequestCode.AUTH_CREATE_USER, {"username": name}, msgspec.json.encode(info))

    async def put_plain(self, account: PlainAccountHeader) -> None:
        """Make an account as RocketMQ 4 has it, or have one be so; its permissions become rules."""
        await self._ask(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, encode_ext(account))

    async def put_white_list(self, addresses: Sequence[str]) -> None:
        """From now on clients with these addresses need no account to send and consume."""
        header = WhiteListHeader(",".join(addresses))
        await self._ask(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, encode_ext(header))

    async def change(self, name: str, *, secret: str | None = None, is_enabled: bool | None = None) -> None:
        """Give an account another secret or status; the old one counts no longer, also for clients that run."""
        info = UserInfo(name, secret, None, None if is_enabled is None else _STATUS[is_enabled])
        await self._ask(RequestCode.AUTH_UPDATE_USER, {"username": name}, msgspec.json.encode(info))

    async def delete(self, name: str) -> None:
        """Delete an account with its rules; none is no error."""
        await self._ask(RequestCode.AUTH_DELETE_USER, {"username": name})

    async def accounts(self) -> dict[str, list[AccountInfo]]:
        """All accounts of each broker group."""
        answers = await self._ask(RequestCode.AUTH_LIST_USER, {"filter": ""})
        return {
            group: [
                AccountInfo(user.username or "", user.user_type == _ADMINISTRATOR, user.user_status == _STATUS[True])
                for user in decode(list[UserInfo], body)
            ]
            for group, body in answers.items()
        }

    async def grant(self, name: str, rule: AccessRule) -> None:
        """Give an account a rule, in place of the one that it has on the same resource."""
        entry = PolicyEntryInfo(
            rule.resource, list(rule.actions), list(rule.sources), "Allow" if rule.allow else "Deny"
        )
        policy = PolicyInfo("Default" if rule.is_default else "Custom", [entry])
        subject = SUBJECT_PREFIX + name
        body = msgspec.json.encode(AclInfo(subject, [policy]))
        await self._ask(RequestCode.AUTH_UPDATE_ACL, {"subject": subject}, body)

    async def revoke(self, name: str, resource: str | None = None, *, is_default: bool = False) -> None:
        """Take an account's rule on a resource, or all of its rules. Raises `RefusedError` if it has none."""
        ext = {"subject": SUBJECT_PREFIX + name, "policyType": "Default" if is_default else "Custom"}
        await self._ask(RequestCode.AUTH_DELETE_ACL, ext | ({} if resource is None else {"resource": resource}))

    async def rules(self) -> dict[str, dict[str, list[AccessRule]]]:
        """The rules of all accounts, by broker group and account."""
        answers = await self._ask(RequestCode.AUTH_LIST_ACL, {})
        return {
            group: {
                (acl.subject or "").removeprefix(SUBJECT_PREFIX): [
                    rule for policy in acl.policies or () for rule in _rules_of(policy)
                ]
                for acl in decode(list[AclInfo], body)
            }
            for group, body in answers.items()
        }

    async def _ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> dict[str, bytes]:
        """The bodies of the answers of all broker groups' leaders."""
        calls = self._opening.calls
        answers = await calls.ask_leaders(await calls.group_names(None), code, ext, body)
        return {name: answer.body for name, answer in answers.items()}


def _rules_of(policy: PolicyInfo) -> list[AccessRule]:
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
