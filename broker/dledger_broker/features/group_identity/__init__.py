"""Identity of the broker group, recorded in its log once all voters understand identities.

Nodes show the recorded identity to each other.

`table.py` has the replicated identity. `adoption.py` records it on the leader and adopts it on every node.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.group_identity.adoption import Adoption
from dledger_broker.features.group_identity.table import GROUP_IDENTITY, GROUP_IDENTITY_COMMANDS, NAME
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> Adoption:
    return Adoption(context.machine, context.env)


FEATURE: Final = Feature(
    name=NAME, commands=GROUP_IDENTITY_COMMANDS, table=GROUP_IDENTITY, activated=True, build=_build
)
