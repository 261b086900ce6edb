"""Settings that the proxy gives its clients: their own, with what the service decides.

| for | decided here |
|---|---|
| producers | the largest body, whether kinds of messages are checked, when a send is tried again |
| consumers | whether order counts, how much and how long a request asks for, when a message comes again |
| all | that clients send no metrics |
"""

from __future__ import annotations

from typing import Final

from dledger_remoting.pop import MAX_POP_MESSAGES
from dledger_remoting.retry_policies import CustomizedRetryPolicy, ExponentialRetryPolicy
from dledger_remoting.topics import SubscriptionGroupConfig

from .definition import messaging_pb2 as pb
from .incoming import duration
from .receiving import MAX_POLL_SECONDS

PRODUCER_ATTEMPTS: Final = 3
"""Number of attempts of a producer's send, in all."""
PRODUCER_BACKOFF_MS: Final = 10
"""Time in ms before the second attempt. It doubles for each further one."""
PRODUCER_MAX_BACKOFF_MS: Final = 1_000
POLL_MS: Final = int(MAX_POLL_SECONDS * 1_000)


def producer_settings(settings: pb.Settings, *, max_body_bytes: int, checks_types: bool) -> pb.Settings:
    """Return a producer's settings with what the service decides."""
    merged = pb.Settings()
    merged.CopyFrom(settings)
    merged.publishing.max_body_size = max_body_bytes
    merged.publishing.validate_message_type = checks_types
    backoff = pb.ExponentialBackoff(
        initial=duration(PRODUCER_BACKOFF_MS), max=duration(PRODUCER_MAX_BACKOFF_MS), multiplier=2
    )
    merged.backoff_policy.CopyFrom(pb.RetryPolicy(max_attempts=PRODUCER_ATTEMPTS, exponential_backoff=backoff))
    merged.metric.CopyFrom(pb.Metric(on=False))
    return merged


def consumer_settings(settings: pb.Settings, group: SubscriptionGroupConfig) -> pb.Settings:
    """Return a consumer's settings with what the service decides, and the settings of its group."""
    merged = pb.Settings()
    merged.CopyFrom(settings)
    merged.subscription.fifo = group.consume_message_orderly
    merged.subscription.receive_batch_size = MAX_POP_MESSAGES
    merged.subscription.long_polling_timeout.CopyFrom(duration(POLL_MS))
    policy = _retry_policy(group)
    if settings.user_agent.language == pb.NODE_JS and policy.HasField("customized_backoff"):
        policy.exponential_backoff.CopyFrom(_about(policy.customized_backoff))
    merged.backoff_policy.CopyFrom(policy)
    merged.metric.CopyFrom(pb.Metric(on=False))
    return merged


def _about(delays: pb.CustomizedBackoff) -> pb.ExponentialBackoff:
    """Return a policy that is about the same as a list of delays.

    Node's client knows no lists. It would take a message of an ordered group for a dead letter after one failure.
    """
    return pb.ExponentialBackoff(initial=delays.next[0], max=delays.next[-1], multiplier=2)


def _retry_policy(group: SubscriptionGroupConfig) -> pb.RetryPolicy:
    attempts = group.retry_max_times + 1
    chosen = group.group_retry_policy.chosen if group.group_retry_policy else None
    if isinstance(chosen, ExponentialRetryPolicy):
        backoff = pb.ExponentialBackoff(
            initial=duration(chosen.initial), max=duration(chosen.max), multiplier=chosen.multiplier
        )
        return pb.RetryPolicy(max_attempts=attempts, exponential_backoff=backoff)
    delays = (chosen or CustomizedRetryPolicy()).next
    return pb.RetryPolicy(
        max_attempts=attempts, customized_backoff=pb.CustomizedBackoff(next=[duration(delay) for delay in delays])
    )
