"""Administrators who say how groups consume topics (401), and ask (402); both come and go meanwhile. And their judge.

A mode that was set is told by whoever leads, until another one is set, or its topic or group is deleted.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.assignments.table import Mode, ModeKey
from dledger_remoting.assignments import (
    AssignmentsBody,
    QueryAssignmentBody,
    RequestMode,
    RequestModeBody,
    RequestModesBody,
)
from dledger_remoting.bodies import decode_body, encode_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.heartbeat import MessageModel
from dledger_sim.brokers.clients import Client
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.tenants import NOT_DONE
from dledger_sim.brokers.workload import Workload
from dledger_sim.log.invariants import require

MODAL_GROUP: Final = "modal"
"""A group that nobody makes or deletes."""


class ModeSetter(Client):
    """Sets modes, each of which has a number of its own, and asks for them all, and for assignments."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self._numbers = 0

    def act(self) -> None:
        """Set a mode, or ask."""
        choice = self.random.random()
        if choice < 0.4:
            self._set()
        elif choice < 0.8:
            self._ask()
        else:
            self._ask_for_queues()

    def _any_key(self) -> ModeKey:
        workload = self.workload
        topic = self.random.choice([*workload.passing, *sorted(workload.lasting)])
        clubs = [name for name in workload.truth.expected.groups if name.startswith("club-")]
        return ModeKey(topic, self.random.choice([MODAL_GROUP, *sorted(clubs)]))

    def _set(self) -> None:
        self._numbers += 1
        key, mode = self._any_key(), Mode(self.random.random() < 0.5, 1_000 * self._numbers + self.number)
        expected, change = self.workload.truth.expected, ("mode", key, mode)
        expected.attempt(change)

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self._require(key, mode, answer, "a mode is set once it is applied")
                self.workload.counts["mode set"] += 1
            elif answer is not None and answer.code in NOT_DONE:
                expected.refuse(change)
            self.pause()

        how = RequestMode.POP if mode.pops else RequestMode.PULL
        body = encode_body(RequestModeBody(*key, how, mode.pop_share_queues))
        if not self.call(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, done, body=body):
            expected.refuse(change)
            self.pause()

    def _ask(self) -> None:
        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self._told(answer)
            self.pause()

        if not self.call(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, {}, done):
            self.pause()

    def _told(self, answer: Answer) -> None:
        modes = decode_body(RequestModesBody, answer.body).message_request_mode_map
        found = {
            ModeKey(topic, group): Mode(mode.mode is RequestMode.POP, mode.pop_share_queue_num)
            for topic, groups in modes.items()
            for group, mode in groups.items()
        }
        for key in {*found, *self.workload.truth.expected.modes}:
            self._require(key, found.get(key), answer, "a mode is told as it was set last")
        self.workload.counts["modes told"] += 1

    def _require(self, key: ModeKey, found: Mode | None, answer: Answer, promise: str) -> None:
        if answer.seen is None:
            return
        known = self.workload.truth.expected.modes[key].during(answer.seen.asked_at, self.workload.group.scheduler.now)
        require(found in known, promise, key=key, found=found, known=known)

    def _ask_for_queues(self) -> None:
        """As one that broadcasts: who is asked gives all queues of the topic, or says nothing."""
        key = self._any_key()

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                rows = decode_body(AssignmentsBody, answer.body).message_queue_assignments or []
                queues = [row.message_queue.queue_id for row in rows]
                require(queues == list(range(len(queues))), "a topic has each queue once", key=key, queues=queues)
                self.workload.counts["queues assigned"] += bool(queues)
            self.pause()

        body = encode_body(QueryAssignmentBody(*key, self.name, message_model=MessageModel.BROADCASTING))
        if not self.call(RequestCode.QUERY_ASSIGNMENT, {}, done, body=body):
            self.pause()
