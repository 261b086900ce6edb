"""Features of the broker: what is replicated and asked for beside topics, queues and members, which are the kernel's.

`COMMANDS` puts together what the kernel and each of them define, in one explicit list; nothing registers itself.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.kernel.commands import CommandRegistry
from dledger_broker.kernel.members import MEMBER_COMMANDS
from dledger_broker.kernel.topics import TOPIC_COMMANDS
from dledger_broker.kernel.trims import TRIM_COMMANDS
from dledger_broker.state.groups import GROUP_COMMANDS
from dledger_broker.state.offsets import OFFSET_COMMANDS
from dledger_broker.state.pins import PIN_COMMANDS
from dledger_broker.state.remembered import SEND_COMMANDS

COMMANDS: Final = CommandRegistry(
    TOPIC_COMMANDS,
    TRIM_COMMANDS,
    MEMBER_COMMANDS,
    GROUP_COMMANDS,
    OFFSET_COMMANDS,
    PIN_COMMANDS,
    SEND_COMMANDS,
)
"""Every command that this version understands."""
