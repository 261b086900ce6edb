"""Headers and bodies of requests about accounts in RocketMQ 4's form: 50 to 54.

Format: RocketMQ's `CreateAccessConfigRequestHeader`, `AclConfig` and their neighbours.
"""

from __future__ import annotations

import msgspec


class PlainAccountHeader(msgspec.Struct, frozen=True, rename="camel"):
    """Creates or changes an account (50).

    Fields that are None are not changed. Permissions are `name=PUB|SUB`, between commas.
    """

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None

    def __repr__(self) -> str:
        return f"PlainAccountHeader({self.access_key!r})"


class PlainAccountNameHeader(msgspec.Struct, frozen=True, rename="camel"):
    """Deletes an account (51)."""

    access_key: str


class WhiteListHeader(msgspec.Struct, frozen=True, rename="camel"):
    """Sets the addresses that need no account (53), separated by commas; empty for none."""

    global_white_addrs: str = ""


class AclVersionHeader(msgspec.Struct, frozen=True, rename="camel"):
    """Answer to 52: the version of the accounts that a broker has."""

    version: str
    all_acl_file_version: str
    broker_name: str
    broker_addr: str
    cluster_name: str


class PlainAccount(msgspec.Struct, frozen=True, rename="camel"):
    """An account in the answer to 54, without its secret."""

    access_key: str
    white_remote_address: str
    admin: bool
    default_topic_perm: str
    default_group_perm: str
    topic_perms: list[str]
    group_perms: list[str]


class PlainAccounts(msgspec.Struct, frozen=True, rename="camel"):
    """Answer to 54."""

    global_white_addrs: list[str]
    plain_access_configs: list[PlainAccount]
