"""In-memory twins of the broker's foundations, for tests of the broker and of its features.

- `FakeNode`: a group of one replica that commits at once.
- `FakeEnvironment`: a clock and worker threads that only move on command.
- `BrokerInMemory`: a state machine on both.
- `records.py`: writes records as a leader does.

Nothing here imports a test framework.
"""

from dledger_broker.testing.broker import SMALL, BrokerInMemory
from dledger_broker.testing.environment import START_MS, FakeEnvironment
from dledger_broker.testing.node import FakeLog, FakeNode
from dledger_broker.testing.records import Message, SentMessages, stage_messages

__all__ = [
    "SMALL",
    "START_MS",
    "BrokerInMemory",
    "FakeEnvironment",
    "FakeLog",
    "FakeNode",
    "Message",
    "SentMessages",
    "stage_messages",
]
