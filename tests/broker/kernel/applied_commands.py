"""Commands applied to a state outside of any log."""

from dledger.statemachine import CommittedEntry
from dledger_broker.features import COMMANDS
from dledger_broker.kernel.commands import Command, CommandRegistry
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.tables import Changes


def apply(state: BrokerState, *commands: Command, registry: CommandRegistry = COMMANDS) -> Changes:
    """Apply an entry that has these commands."""
    changes = Changes(state.tables)
    section = b"".join(map(registry.encode, commands))
    state.apply(CommittedEntry(0, 1, 0, b"", section), changes, registry)
    return changes
