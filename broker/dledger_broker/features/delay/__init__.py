"""Due messages: delay levels, and any time to the millisecond. They wait in the log until they are due.

`commands.py` are the facts that the log has of them, `table.py` counts by stretches of the log what is pending, and
`index.py` knows on each node what is due next. `asked.py` says when a message is due, `records.py` how it waits,
`firing.py` delivers it, `moving.py` keeps it when the log is trimmed, `recalls.py` takes it back; `by_key.py` finds it
by its key. Start reading in `messages.py`.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.clients.gossip import Gossip
from dledger_broker.features.delay.commands import DELAY_COMMANDS
from dledger_broker.features.delay.messages import NAME, DueMessages
from dledger_broker.features.delay.table import TIMERS
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> DueMessages:
    return DueMessages(
        context.machine,
        context.writer,
        context.log,
        context.env,
        context.live,
        context.clock,
        context.requests,
        context.parts[Gossip],
    )


FEATURE: Final = Feature(name=NAME, commands=DELAY_COMMANDS, table=TIMERS, activated=True, build=_build)
