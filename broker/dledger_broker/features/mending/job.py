"""Leader job for damaged consume queues: hands over to a node whose queues are whole, and mends meanwhile.

Pulls of a damaged queue wait until the queue is mended, and no trim can be decided. If no other node is whole, or the
handover fails, this node keeps leading. It reads the missing part of its queues from its log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger.log import Log
from dledger_broker.clients.gossip import Gossip
from dledger_broker.kernel.jobs import Job, JobHandle
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part

QUEUES_WHOLE: Final = "queues_whole"
"""Name of the gossip fact that is 1 while no queue of a node is marked as damaged, else 0."""
LOOK_S: Final = 1.0
PATIENCE_S: Final = 2.0
"""Time limit for mending before a leader hands over. A small log is read in less time."""
PAUSE_S: Final = 60.0
"""Minimum interval between two handovers of one node because of damaged queues."""

_logger = logging.getLogger(__name__)


class Mending(Part):
    """Leader job that hands over while queues are damaged; implements `dledger_broker.kernel.jobs.Job`."""

    name: Final = "mending"

    def __init__(self, machine: BrokerMachine, log: Log, env: Environment, gossip: Gossip) -> None:
        self._mender = machine.mender
        self._queues = machine.queues
        self._log = log
        self._env = env
        self._gossip = gossip
        self._not_before = 0.0
        gossip.facts[QUEUES_WHOLE] = lambda: int(self._mender.is_whole)

    @property
    def jobs(self) -> Sequence[Job]:
        return (self,)

    @property
    def gauges(self) -> Sequence[Gauge]:
        return (
            Gauge(
                "queues_damaged",
                "Consume queues whose files are missing, unreadable or rotten, and not mended yet",
                lambda: len(self._queues.damaged),
            ),
            Gauge("queues_mended", "Consume queues that were mended from the log", lambda: self._mender.mended),
        )

    def run(self, handle: JobHandle) -> None:
        """Begin to search for damaged queues."""
        self._check_queues(handle, None)

    def _check_queues(self, handle: JobHandle, damaged_since: float | None) -> None:
        now = self._env.now()
        if self._mender.is_whole:
            damaged_since = None
        elif damaged_since is None:
            damaged_since = now
        handle.call_later(LOOK_S, partial(self._check_queues, handle, damaged_since))
        if damaged_since is None or now - damaged_since < PATIENCE_S or now < self._not_before:
            return
        voters = {str(voter.node_id) for voter in self._log.membership.voters}
        candidates = [
            node_id
            for node_id, whole in self._gossip.reported_facts(QUEUES_WHOLE).items()
            if whole and node_id in voters
        ]
        if candidates and handle.hand_over(min(candidates)):
            self._not_before = now + PAUSE_S
            _logger.warning("event=mending_hands_over to=%s reason='consume queues are being mended'", min(candidates))
