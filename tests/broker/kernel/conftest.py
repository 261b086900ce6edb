"""Broker and state that the tests look at."""

import pytest
from broker_in_memory import broker

from dledger_broker.features import FEATURES
from dledger_broker.kernel.state import BrokerState

__all__ = ["broker"]


@pytest.fixture
def state() -> BrokerState:
    """Return an empty state."""
    return BrokerState(FEATURES)
