"""Access control and TLS of a broker group, recorded in its log.

The log decides whether access control is on, so a node whose key file is missing does not serve everybody. `table.py`
has the recorded fact, `job.py` decides when a leader records it. Requests are judged by `features/accounts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dledger_broker.features.access.job import AccessJob
from dledger_broker.features.access.table import ACCESS, ACCESS_COMMANDS, NAME
from dledger_broker.kernel.jobs import Job
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Context, Feature, Gauge, Part


class GroupAccess(Part):
    """Part that records whether the whole broker group has access control and TLS, and shows both as gauges."""

    def __init__(self, machine: BrokerMachine, job: AccessJob) -> None:
        self._machine = machine
        self._job = job

    @property
    def jobs(self) -> Sequence[Job]:
        return (self._job,)

    @property
    def gauges(self) -> Sequence[Gauge]:
        text = "1 once access control is on for the whole group, by its log"
        tls = "1 once TLS is on at all ports for clients of the group, by its log"
        return (
            Gauge("access_control_of_group", text, lambda: int(self._machine.state.table(ACCESS).since > 0)),
            Gauge("tls_of_group", tls, lambda: int(self._machine.state.table(ACCESS).tls_since > 0)),
        )


def _build(context: Context) -> GroupAccess:
    return GroupAccess(context.machine, AccessJob(context.machine, context.config))


FEATURE: Final = Feature(name=NAME, commands=ACCESS_COMMANDS, table=ACCESS, build=_build)
