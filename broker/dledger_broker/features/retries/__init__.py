"""Retries and dead letters: a message that a consumer could not handle is delivered again later.

After too many deliveries, it goes to the dead letters of its group. `requests.py` takes messages that consumers send
back. `records.py` makes the stored copy, and `policies.py` says how long the message waits. `repeats.py` remembers what
was sent back before, and `pace.py` limits the rate. Messages wait for their next delivery as delayed messages do
(`features/delay`), for the retry topic of the group.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.groups.requests import GroupRequests
from dledger_broker.features.quotas.requests import QuotaRequests
from dledger_broker.features.retries.requests import RetryRequests
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> RetryRequests:
    groups = context.parts[GroupRequests]
    retries = RetryRequests(
        context.machine,
        context.writer,
        context.env,
        context.live,
        context.requests,
        groups.proposals,
        context.parts[DueMessages],
        context.access,
        context.counters,
        context.parts[QuotaRequests].sends,
    )
    groups.checks.append(retries.check_settings)
    return retries


FEATURE: Final = Feature(name="retries", build=_build)
