"""Runs of leader jobs without a job."""

from __future__ import annotations

from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.testing import BrokerInMemory


def run_of_a_job(broker: BrokerInMemory) -> JobHandle:
    """Return a handle that a test ends by itself. An exception under it is raised in the test."""
    return JobHandle(broker.env, broker.machine.overlay, broker.node, broker.writer, broker.node.term, _raise)


def _raise(_handle: JobHandle, error: Exception) -> None:
    raise error
