"""Broker with groups CG and OTHER, and two clients of it."""

import pytest
from served_broker import MakeBroker, ServedBroker

from tests.broker.features.locks.lock_calls import Locker


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    return make_broker().put_group("CG").put_group("OTHER")


@pytest.fixture
def anna(broker: ServedBroker) -> Locker:
    return Locker(broker, "n1/1", "anna")


@pytest.fixture
def bert(broker: ServedBroker) -> Locker:
    return Locker(broker, "n1/2", "bert")
