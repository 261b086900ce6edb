"""Administrators who set how groups consume topics (401), and query that (402), while topics and groups come and go.

With their judge.

A mode that was set is reported by every leader until another is set, or its topic or group is deleted.
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
from dledger_remoting.codes import RequestCode
from dledger_remoting.heartbeat import MessageModel
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.setters import Setter
from dledger_sim.log.invariants import require

MODAL_GROUP: Final = "modal"
"""Group that no client makes or deletes."""


class ModeSetter(Setter):
    """Administrator who sets modes, each with a unique number, and queries all modes and assignments."""

    def act(self) -> None:
        """Set a mode, or query."""
        choice = self.random.random()
        if choice < 0.4:
            self._set_mode()
        elif choice < 0.8:
            self.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, self._judge_list)
        else:
            self._ask_for_queues()

    def _draw_key(self) -> ModeKey:
        workload = self.workload
        topic = self.random.choice([*workload.passing, *sorted(workload.lasting)])
        clubs = [name for name in workload.truth.expected.groups if name.startswith("club-")]
        return ModeKey(topic, self.random.choice([MODAL_GROUP, *sorted(clubs)]))

    def _set_mode(self) -> None:
        key, mode = self._draw_key(), Mode(self.random.random() < 0.5, self.next_number())
        history = self.workload.truth.expected.modes[key]

        def done(answer: Answer) -> None:
            self.require_known(history, mode, answer, "a mode is set once it is applied", key=key)
            self.workload.counts["mode set"] += 1

        how = RequestMode.POP if mode.pops else RequestMode.PULL
        body = encode_body(RequestModeBody(*key, how, mode.pop_share_queues))
        self.change(RequestCode.SET_MESSAGE_REQUEST_MODE, ("mode", key, mode), done, ext={}, body=body)

    def _judge_list(self, answer: Answer) -> None:
        modes_by_topic = decode_body(RequestModesBody, answer.body).message_request_mode_map
        found = {
            ModeKey(topic, group): Mode(mode.mode is RequestMode.POP, mode.pop_share_queue_num)
            for topic, groups in modes_by_topic.items()
            for group, mode in groups.items()
        }
        modes = self.workload.truth.expected.modes
        for key in {*found, *modes}:
            self.require_known(modes[key], found.get(key), answer, "a mode is told as it was set last", key=key)
        self.workload.counts["modes told"] += 1

    def _ask_for_queues(self) -> None:
        """Query the assignment of a broadcasting consumer: it gets all queues of the topic, or none."""
        key = self._draw_key()

        def done(answer: Answer) -> None:
            rows = decode_body(AssignmentsBody, answer.body).message_queue_assignments or []
            queues = [row.message_queue.queue_id for row in rows]
            require(queues == list(range(len(queues))), "a topic has each queue once", key=key, queues=queues)
            self.workload.counts["queues assigned"] += bool(queues)

        body = encode_body(QueryAssignmentBody(*key, self.name, message_model=MessageModel.BROADCASTING))
        self.ask(RequestCode.QUERY_ASSIGNMENT, done, body=body)
