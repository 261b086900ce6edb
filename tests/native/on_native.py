"""`pytest -p tests.native.on_native`: every broker of a test, without Raft and disk, runs on the native part.

A panic fails the test: the twin would answer, and nobody would see it.
"""

import importlib

from dledger_broker.testing import FakeEnvironment
from tests.native.conftest import no_panics

__all__ = ["no_panics"]

FakeEnvironment.native = importlib.import_module("dledger_native")
