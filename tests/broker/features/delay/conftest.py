"""Group of three simulated nodes."""

import pytest

from tests.broker.features.delay.delayed_brokers import Delayed


@pytest.fixture
def delayed() -> Delayed:
    return Delayed()
