"""The driver of a replica's parts: small, and a test's one takes the calls that a whole replica takes."""

import inspect

import pytest

from dledger.replica.driver import Driver
from tests.dledger.fake_driver import FakeDriver

MEMBERS = {name: member for name, member in vars(Driver).items() if not name.startswith("_")}


def test_a_part_may_ask_its_driver_for_eight_things():
    assert sorted(MEMBERS) == ["execute", "fail", "is_ready", "is_stopped", "pump", "run", "stage", "suspect"]


@pytest.mark.parametrize("name", [name for name, member in MEMBERS.items() if callable(member)])
def test_a_tests_driver_takes_the_same_calls(name: str):
    wanted, given = (inspect.signature(getattr(kind, name)).parameters.values() for kind in (Driver, FakeDriver))
    assert [(one.name, one.kind, one.default) for one in given] == [(one.name, one.kind, one.default) for one in wanted]
