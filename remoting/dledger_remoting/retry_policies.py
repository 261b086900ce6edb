"""Retry policies of consumer groups: delays before a message is delivered again.

Names, defaults and rules are those of RocketMQ's `GroupRetryPolicy`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from .integers import Int64

DELAYS_MS: Final = tuple(
    1000 * seconds
    for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
SKIPPED_DELAYS: Final = 2
"""Number of delays that are skipped: the first retry waits the third delay, as with RocketMQ's levels."""
MAX_EXPONENT: Final = 32


class RetryPolicyType(Enum):
    """Type of the policy that applies."""

    CUSTOMIZED = "CUSTOMIZED"
    EXPONENTIAL = "EXPONENTIAL"


class CustomizedRetryPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """A list of delays in ms, one for each retry. The last delay also applies to all later retries."""

    next: tuple[Int64, ...] = DELAYS_MS

    def delay_ms(self, reconsume_times: int) -> int:
        """Return the delay in ms before the next delivery of a message that was delivered again `reconsume_times`
        times.
        """
        return self.next[min(reconsume_times + SKIPPED_DELAYS, len(self.next) - 1)]


class ExponentialRetryPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """A delay in ms that is multiplied for each retry, up to `max`."""

    initial: Int64 = 5_000
    max: Int64 = 7_200_000
    multiplier: Int64 = 2

    def delay_ms(self, reconsume_times: int) -> int:
        """Return the delay in ms before the next delivery of a message that was delivered again `reconsume_times`
        times.
        """
        factor: int = self.multiplier ** min(reconsume_times, MAX_EXPONENT)
        return min(self.max, self.initial * factor)


class GroupRetryPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """The policy of a group. If its `type` has no settings, the broker's delay levels apply."""

    type: RetryPolicyType = RetryPolicyType.CUSTOMIZED
    exponential_retry_policy: ExponentialRetryPolicy | msgspec.UnsetType | None = msgspec.UNSET
    customized_retry_policy: CustomizedRetryPolicy | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def chosen(self) -> CustomizedRetryPolicy | ExponentialRetryPolicy | None:
        """The settings that apply, None if there are none."""
        is_exponential = self.type is RetryPolicyType.EXPONENTIAL
        return (self.exponential_retry_policy if is_exponential else self.customized_retry_policy) or None

    @property
    def is_default(self) -> bool:
        """True for the policy that RocketMQ's clients send for a group without a policy of its own."""
        is_customized = self.type is RetryPolicyType.CUSTOMIZED
        return is_customized and not self.exponential_retry_policy and not self.customized_retry_policy
