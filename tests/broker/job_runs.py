"""Runs of leader jobs without a job."""

from __future__ import annotations

from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.testing import BrokerInMemory


def run_of_a_job(broker: BrokerInMemory) -> JobHandle:
    """A handle that a test ends by itself; an exception under it is the test's."""
    return JobHandle(broker.env, broker.machine.overlay, broker.node, broker.writer, broker.node.term, _raise)


def _raise(_handle: JobHandle, error: Exception) -> None:
    raise error
