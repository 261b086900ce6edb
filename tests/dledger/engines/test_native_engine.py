"""The native engine holds every promise of an engine, including the optional ones."""

import pytest

from dledger.engines.named import NATIVE
from dledger_sim.engine_suite import MEMBERSHIP_PROMISES, PROMISES, TRANSFER_PROMISES
from dledger_sim.engine_suite.groups import Promise

ALL = (*PROMISES, *TRANSFER_PROMISES, *MEMBERSHIP_PROMISES)


@pytest.mark.parametrize("promise", ALL, ids=lambda promise: promise.__name__)
def test_the_native_engine_keeps(promise: Promise) -> None:
    promise(NATIVE)
