"""Broker with access control that leads, has topics T1 and T2, and has no account."""

import pytest
from guarded_broker import guarded_broker
from served_broker import ServedBroker


@pytest.fixture
def broker() -> ServedBroker:
    return guarded_broker()
