"""`pytest -p tests.native.on_native`: every broker of a test, without Raft and disk, runs on the native part."""

import importlib

from dledger_broker.testing import FakeEnvironment

FakeEnvironment.native = importlib.import_module("dledger_native")
