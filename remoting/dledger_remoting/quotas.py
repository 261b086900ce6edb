"""Bodies about quotas, which RocketMQ has none of (20017, 20018)."""

from __future__ import annotations

import msgspec


class Quota(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What an account may send, or a topic may be sent, in a second, by all senders together; 0 is no limit.

    `kind` is `account` or `topic`; with `account-reads` or `topic-reads` it is what is read. `bytes_per_second` counts
    records as they are stored.
    """

    kind: str
    name: str
    messages_per_second: int = 0
    bytes_per_second: int = 0


class QuotaRow(Quota, frozen=True, rename="camel", omit_defaults=True):
    """A quota, and how many requests the node that answers has held and refused for it since its start."""

    held: int = 0
    refused: int = 0


class QuotaList(msgspec.Struct, frozen=True):
    """All quotas of a group, accounts first, by name."""

    quotas: list[QuotaRow]
