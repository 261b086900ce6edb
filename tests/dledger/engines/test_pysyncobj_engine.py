"""The engine around PySyncObj holds every promise of an engine, those that an engine may leave out included."""

import pytest

from dledger.engines.pysyncobj.kind import PYSYNCOBJ
from dledger.testing.engine_suite import MEMBERSHIP_PROMISES, PROMISES, TRANSFER_PROMISES
from dledger.testing.engine_suite.groups import Promise

ALL = (*PROMISES, *TRANSFER_PROMISES, *MEMBERSHIP_PROMISES)


@pytest.mark.parametrize("promise", ALL, ids=lambda promise: promise.__name__)
def test_the_engine_around_pysyncobj_keeps(promise: Promise) -> None:
    promise(PYSYNCOBJ)
