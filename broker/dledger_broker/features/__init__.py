"""Features of the broker: each folder has what one feature replicates and what it does on a node.

`FEATURES` lists the features explicitly; nothing registers itself. A node makes their parts in this order, so each part
follows the parts that it uses. Parts are told of events (`kernel.events`) in this order too.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features import (
    access,
    accounts,
    assignments,
    class_filters,
    client_membership,
    consumer_questions,
    delay,
    group_identity,
    group_settings,
    groups,
    leases,
    locks,
    mending,
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
    speakers,
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
    leases.FEATURE,
    assignments.FEATURE,
    resets.FEATURE,
    queries.FEATURE,
    pins.FEATURE,
    ranges.FEATURE,
    retention.FEATURE,
    mending.FEATURE,
    group_settings.FEATURE,
    group_identity.FEATURE,
    statistics.FEATURE,
    consumer_questions.FEATURE,
    runtime.FEATURE,
    accounts.FEATURE,
    speakers.FEATURE,
    access.FEATURE,
)

COMMANDS: Final = registry_of(FEATURES)
"""Registry of all commands that this version understands."""
