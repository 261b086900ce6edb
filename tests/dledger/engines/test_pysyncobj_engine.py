"""The engine around PySyncObj holds every promise of an engine, including the optional ones."""

from random import Random

import pytest

from dledger.consensus.engine import EngineStart, KnownLog, RaftSettings
from dledger.engines.pysyncobj import PYSYNCOBJ
from dledger.types import HardState, Membership
from dledger_sim.engine_group import replica
from dledger_sim.engine_suite import MEMBERSHIP_PROMISES, PROMISES, TRANSFER_PROMISES
from dledger_sim.engine_suite.groups import Promise

ALL = (*PROMISES, *TRANSFER_PROMISES, *MEMBERSHIP_PROMISES)


@pytest.mark.parametrize("promise", ALL, ids=lambda promise: promise.__name__)
def test_the_engine_around_pysyncobj_keeps(promise: Promise) -> None:
    promise(PYSYNCOBJ)


@pytest.mark.parametrize("times", [(0.1, 0.2, 0.2), (0.2, 0.5, 1.0), (0.1, 1.0, 1.0)])
def test_the_engine_starts_with_boundary_values_of_its_times(times: tuple[float, float, float]) -> None:
    """`SyncObj` requires larger distances between these times than `dledger.config` does."""
    log = KnownLog(membership=Membership((replica("a"),)))
    start = EngineStart(replica("a"), log, HardState(), -1, -1, RaftSettings(*times), Random(1), 0.0)
    assert PYSYNCOBJ.start(start).term == 0
