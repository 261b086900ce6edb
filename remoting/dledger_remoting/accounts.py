"""Headers and bodies of the requests about accounts and their access rules: codes 3001 to 3010.

Format: RocketMQ's `UserInfo`, `AclInfo`, `CreateUserRequestHeader` and the request headers beside it. A rule applies to
a subject, written `User:NAME`.

The root accounts are derived from the keys of a key file. The secret of such an account is the Base64 of HMAC-SHA256
over the account's label with a key. A client signs with the first key's secret; a server accepts the secret of each
key.

Nodes have an account of their own, which allows only registrations. A signature does not say for what request it
was made. With a shared account, a foreign name server could forward a registration to brokers as the creation of an
administrator.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Sequence
from typing import Final

import msgspec

from .signatures import Credentials

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


ROOT: Final = "dledger.root"
"""The administrators' account."""
NODE: Final = "dledger.node"
"""The nodes' account, which only name servers accept."""
_LABEL: Final = b"dledger root account 1"
_NODE_LABEL: Final = b"dledger node account 1"


def root_secret(key: bytes) -> str:
    """Return the administrators' secret for a key."""
    return b64encode(hmac.digest(key, _LABEL, "sha256")).decode()


def node_secret(key: bytes) -> str:
    """Return the nodes' secret for a key."""
    return b64encode(hmac.digest(key, _NODE_LABEL, "sha256")).decode()


def root_credentials(keys: Sequence[bytes]) -> Credentials:
    """Return the administrators' credentials, derived from the first of the keys."""
    return Credentials(ROOT, root_secret(keys[0]))
