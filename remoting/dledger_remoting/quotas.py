"""Bodies of requests about quotas (20017, 20018), which RocketMQ does not have."""

from __future__ import annotations

import msgspec


class Quota(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Limits per second on the messages that an account sends, or that all senders together send to a topic.

    0 means no limit.

    `kind` is `account` or `topic`. `account-reads` and `topic-reads` limit reading instead. `bytes_per_second` counts
    records as they are stored.
    """

    kind: str
    name: str
    messages_per_second: int = 0
    bytes_per_second: int = 0


class QuotaRow(Quota, frozen=True, rename="camel", omit_defaults=True):
    """A quota, with the numbers of requests that the answering node has held and refused for it since its start."""

    held: int = 0
    refused: int = 0


class QuotaList(msgspec.Struct, frozen=True):
    """All quotas of a group, accounts first, by name."""

    quotas: list[QuotaRow]
