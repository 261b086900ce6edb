"""Features of the broker: each folder is one, with what it replicates and what it does on a node.

`FEATURES` lists them explicitly; nothing registers itself. In this order their parts are made, so that a part comes
behind those that it asks, and all are told of leadership, topics, groups and members.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features import (
    accounts,
    assignments,
    class_filters,
    client_membership,
    consumer_questions,
    delay,
    group_settings,
    groups,
    locks,
    offsets,
    pins,
    pop,
    pulling,
    queries,
    quotas,
    ranges,
    replies,
    resets,
    retention,
    retries,
    runtime,
    sending,
    settings,
    statistics,
    topics,
    transactions,
)
from dledger_broker.kernel.state import registry_of

FEATURES: Final = (
    settings.FEATURE,
    topics.FEATURE,
    groups.FEATURE,
    offsets.FEATURE,
    client_membership.FEATURE,
    delay.FEATURE,
    locks.FEATURE,
    quotas.FEATURE,
    sending.FEATURE,
    transactions.FEATURE,
    retries.FEATURE,
    replies.FEATURE,
    class_filters.FEATURE,
    pulling.FEATURE,
    pop.FEATURE,
    assignments.FEATURE,
    resets.FEATURE,
    queries.FEATURE,
    pins.FEATURE,
    ranges.FEATURE,
    retention.FEATURE,
    group_settings.FEATURE,
    statistics.FEATURE,
    consumer_questions.FEATURE,
    runtime.FEATURE,
    accounts.FEATURE,
)

COMMANDS: Final = registry_of(FEATURES)
"""Every command that this version understands."""
