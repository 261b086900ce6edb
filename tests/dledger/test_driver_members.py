"""The driver of a replica's parts is small. A test's driver takes the same calls as a whole replica."""

import inspect

import pytest

from dledger.replica.driver import Driver
from tests.dledger.fake_driver import FakeDriver

MEMBERS = {name: member for name, member in vars(Driver).items() if not name.startswith("_")}


def test_the_driver_offers_six_members_to_its_parts():
    assert sorted(MEMBERS) == [
        "execute", "fail", "pump", "retire", "run", "suspect",
    ]  # fmt: skip


@pytest.mark.parametrize("name", [name for name, member in MEMBERS.items() if callable(member)])
def test_the_fake_driver_has_the_signatures_of_the_driver(name: str):
    wanted, given = (inspect.signature(getattr(kind, name)).parameters.values() for kind in (Driver, FakeDriver))
    assert [(one.name, one.kind, one.default) for one in given] == [(one.name, one.kind, one.default) for one in wanted]
