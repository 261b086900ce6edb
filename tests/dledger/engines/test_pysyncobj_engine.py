"""The engine around PySyncObj holds every promise of an engine, those that an engine may leave out included."""

from random import Random

import pytest

from dledger.consensus.engine import EngineStart, KnownLog
from dledger.consensus.settings import RaftSettings
from dledger.engines.pysyncobj.kind import PYSYNCOBJ
from dledger.testing.engine_group import replica
from dledger.testing.engine_suite import MEMBERSHIP_PROMISES, PROMISES, TRANSFER_PROMISES
from dledger.testing.engine_suite.groups import Promise
from dledger.types import HardState, Membership

ALL = (*PROMISES, *TRANSFER_PROMISES, *MEMBERSHIP_PROMISES)


@pytest.mark.parametrize("promise", ALL, ids=lambda promise: promise.__name__)
def test_the_engine_around_pysyncobj_keeps(promise: Promise) -> None:
    promise(PYSYNCOBJ)


@pytest.mark.parametrize("times", [(0.1, 0.2, 0.2), (0.2, 0.5, 1.0), (0.1, 1.0, 1.0)])
def test_it_starts_with_all_times_that_a_configuration_may_have(times: tuple[float, float, float]) -> None:
    """`SyncObj` wants them further apart than `dledger.config` does."""
    log = KnownLog(membership=Membership((replica("a"),)))
    start = EngineStart(replica("a"), log, HardState(), -1, -1, RaftSettings(*times), Random(1), 0.0)
    assert PYSYNCOBJ.start(start).term == 0
