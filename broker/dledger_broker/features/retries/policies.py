"""Waiting times of messages before redelivery: by the request, by the group's policy, or by the delay levels."""

from __future__ import annotations

from typing import Final

from dledger_broker.features.delay.asked import RequestedDelay
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.properties import DELAY, TIMER_DELAY_MS
from dledger_remoting.retry_policies import CustomizedRetryPolicy, ExponentialRetryPolicy, GroupRetryPolicy
from dledger_remoting.topics import SubscriptionGroupConfig

FIRST_LEVEL: Final = 3
"""Delay level before the second delivery. It rises by a level with each further delivery."""
MAX_DELAYS: Final = 100
"""Maximum number of delays that a policy may list."""


def retry_delay(
    delay_ms: int | None, level: int, reconsume_times: int, group: SubscriptionGroupConfig, max_delay_s: int
) -> RequestedDelay:
    """Return the delay of a message that was redelivered `reconsume_times` times.

    `delay_ms` and `level` are the client's; None and 0 mean that the client set no delay. Longer delays than allowed
    are cut. The reason is a policy made when longer delays were allowed: its message must not be lost.
    """
    times = max(0, reconsume_times)
    if delay_ms is not None and delay_ms >= 0:
        return RequestedDelay(TIMER_DELAY_MS, min(max(delay_ms, 1), max_delay_s * 1000))
    if level > 0:
        return RequestedDelay(DELAY, level)
    policy = group.group_retry_policy
    chosen = policy.chosen if isinstance(policy, GroupRetryPolicy) else None
    if chosen is None:
        return RequestedDelay(DELAY, FIRST_LEVEL + times)
    return RequestedDelay(TIMER_DELAY_MS, min(chosen.delay_ms(times), max_delay_s * 1000))


def check_policy(policy: GroupRetryPolicy, max_delay_s: int) -> None:
    """Raise `InvalidParameter` for a policy by which a message could not wait."""
    match policy.chosen:
        case CustomizedRetryPolicy(next=delays):
            if not 1 <= len(delays) <= MAX_DELAYS:
                raise InvalidParameter(
                    f"groupRetryPolicy: customizedRetryPolicy.next lists {len(delays)} delays, 1 to {MAX_DELAYS} "
                    "are expected"
                )
            for delay_ms in delays:
                _check_delay("customizedRetryPolicy.next", delay_ms, max_delay_s)
        case ExponentialRetryPolicy(initial=initial, max=longest, multiplier=multiplier):
            _check_delay("exponentialRetryPolicy.initial", initial, max_delay_s)
            _check_delay("exponentialRetryPolicy.max", longest, max_delay_s)
            if multiplier < 1:
                raise InvalidParameter(f"groupRetryPolicy: exponentialRetryPolicy.multiplier {multiplier} is below 1")


def _check_delay(name: str, delay_ms: int, max_delay_s: int) -> None:
    if not 1 <= delay_ms <= max_delay_s * 1000:
        raise InvalidParameter(
            f"groupRetryPolicy: {name} {delay_ms} ms is outside 1..{max_delay_s * 1000}: timer_max_delay_s is "
            f"{max_delay_s}"
        )
