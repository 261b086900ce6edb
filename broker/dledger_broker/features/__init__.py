"""Features of the broker: what is replicated and asked for beside topics, queues and members, which are the kernel's.

`FEATURES` lists them explicitly; nothing registers itself.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.groups import FEATURE as GROUPS
from dledger_broker.features.offsets import FEATURE as OFFSETS
from dledger_broker.features.pins import FEATURE as PINS
from dledger_broker.features.sending.dedup.remembered import REMEMBERED, SEND_COMMANDS
from dledger_broker.kernel.feature import Feature
from dledger_broker.kernel.state import registry_of

FEATURES: Final = (
    GROUPS,
    OFFSETS,
    PINS,
    Feature("idempotent sends", SEND_COMMANDS, REMEMBERED),
)

COMMANDS: Final = registry_of(FEATURES)
"""Every command that this version understands."""
