"""Delayed messages: they wait in the log until they are due, by a delay level or at any time to the millisecond.

Start reading at `messages.py`.

- `commands.py` has the commands in the log, `table.py` counts pending messages by stretches of the log.
- `index.py` knows on each node which messages are due next.
- `asked.py` computes when a message is due, `records.py` writes and reads its waiting record.
- `firing.py` delivers due messages, `moving.py` preserves pending messages when the log is trimmed.
- `recalls.py` recalls messages for their producers, `by_key.py` finds them by their key.
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
