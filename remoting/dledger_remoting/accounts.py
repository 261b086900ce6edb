"""Headers and bodies of requests about accounts and what they may do: 3001 to 3010.

Format: RocketMQ's `UserInfo`, `AclInfo` and the headers of `CreateUserRequestHeader` and its neighbours. A subject is
`User:NAME`.
"""

from __future__ import annotations

import msgspec

SUBJECT_PREFIX = "User:"


class UserHeader(msgspec.Struct, frozen=True, gc=False):
    """The account that 3001 to 3004 are about."""

    username: str


class UserFilterHeader(msgspec.Struct, frozen=True, gc=False):
    """The accounts that 3005 lists: those whose names have this in them."""

    filter: str = ""


class SubjectHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The account whose rules 3006 to 3009 are about; 3008 may name the one rule that goes."""

    subject: str
    policy_type: str | None = None
    resource: str | None = None


class RuleFilterHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The rules that 3010 lists: those whose subjects, and whose resources, have this in them."""

    subject_filter: str = ""
    resource_filter: str = ""


class UserInfo(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An account. A secret comes with 3001 and 3002, and is in no answer."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        return f"UserInfo({self.username!r}, {self.user_type!r}, {self.user_status!r})"


class PolicyEntryInfo(msgspec.Struct, frozen=True, rename="camel"):
    """One rule."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(msgspec.Struct, frozen=True, rename="camel"):
    """Rules that count by themselves (`Custom`), or where none of these says anything (`Default`)."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] | None = None


class AclInfo(msgspec.Struct, frozen=True, rename="camel"):
    """All rules of a subject."""

    subject: str | None = None
    policies: list[PolicyInfo] | None = None
