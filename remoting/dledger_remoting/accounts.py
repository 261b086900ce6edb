"""Headers and bodies of the requests about accounts and their access rules: codes 3001 to 3010.

Format: RocketMQ's `UserInfo`, `AclInfo`, `CreateUserRequestHeader` and the request headers beside it. A rule applies to
a subject, written `User:NAME`.
"""

from __future__ import annotations

import msgspec

SUBJECT_PREFIX = "User:"


class UserHeader(msgspec.Struct, frozen=True, gc=False):
    """Header of 3001 to 3004: the account that the request is about."""

    username: str


class UserFilterHeader(msgspec.Struct, frozen=True, gc=False):
    """Header of 3005: lists the accounts whose names contain `filter`."""

    filter: str = ""


class SubjectHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Header of 3006 to 3009: the subject whose rules the request is about. With 3008, `resource` may name the one rule
    to delete.
    """

    subject: str
    policy_type: str | None = None
    resource: str | None = None


class RuleFilterHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Header of 3010: lists the rules whose subjects and resources contain these texts."""

    subject_filter: str = ""
    resource_filter: str = ""


class UserInfo(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An account. Requests 3001 and 3002 carry a secret (`password`); answers never do.

    `earlier_secret` is a field of ours in 3002. With `kept` the earlier secret counts beside the new one;
    `dropped` ends that. Without the field a new secret ends the earlier one.
    """

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None
    earlier_secret: str | None = None

    def __repr__(self) -> str:
        return f"UserInfo({self.username!r}, {self.user_type!r}, {self.user_status!r})"


class PolicyEntryInfo(msgspec.Struct, frozen=True, rename="camel"):
    """One access rule: it allows or denies actions on a resource, for requests from these addresses."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(msgspec.Struct, frozen=True, rename="camel"):
    """Rules of one type: `Custom` rules are checked first, `Default` rules decide where no custom rule applies."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] | None = None


class AclInfo(msgspec.Struct, frozen=True, rename="camel"):
    """All access rules of a subject."""

    subject: str | None = None
    policies: list[PolicyInfo] | None = None
