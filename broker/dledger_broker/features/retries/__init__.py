"""Retries and dead letters: a message that a consumer could not handle comes again later, or goes to its group's dead
letters once that was often enough.

`records.py` says what is stored of it, `policies.py` how long it waits, `requests.py` takes it from the consumer. What
waits for another delivery waits as a delayed message does (`features/delay`), for the retry topic of the group.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.groups.requests import GroupRequests
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
        context.counters.sent_back,
    )
    groups.checks.append(retries.check_settings)
    return retries


FEATURE: Final = Feature(name="retries", build=_build)
