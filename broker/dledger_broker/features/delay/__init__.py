"""Due messages: delay levels, and any time to the millisecond. They wait in the log until they are due.

`commands.py` are the facts that the log has of them, `table.py` counts by stretches of the log what is pending.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.delay.commands import DELAY_COMMANDS
from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.delay.table import TIMERS
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> DueMessages:
    return DueMessages(context.machine)


FEATURE: Final = Feature(name="delay", commands=DELAY_COMMANDS, table=TIMERS, build=_build)
