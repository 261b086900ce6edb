"""Broker with topics T1 and T2, group CG and the job that delivers messages again, and a client that pops."""

import pytest
from served_broker import MakeBroker, ServedBroker

from tests.broker.features.pop.pop_calls import Popper, with_revivals


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    return with_revivals(make_broker(topics=("T1", "T2")).put_group())


@pytest.fixture
def client(broker: ServedBroker) -> Popper:
    return Popper(broker)
