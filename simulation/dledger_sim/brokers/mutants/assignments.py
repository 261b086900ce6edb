"""Bugs of the ways in which groups consume topics."""

from __future__ import annotations

from dledger_broker.features.assignments.requests import AssignmentRequests
from dledger_broker.features.assignments.table import PutRequestMode, RequestModeTable
from dledger_broker.kernel.requests import Request
from dledger_remoting.assignments import RequestMode, RequestModeBody
from dledger_remoting.bodies import decode_body
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("assignments")


CATALOGUE.add(
    "mode-outlives-its-topic",
    "a request mode ends with its topic",
    (RequestModeTable, "on_topic_deleted", lambda _self, _topic: None),
)


def _keep_modes(_self: RequestModeTable, _group: str, *, clean_offsets: bool) -> None:
    _ = clean_offsets


CATALOGUE.add(
    "mode-outlives-its-group",
    "a request mode ends with its group",
    (RequestModeTable, "on_group_deleted", _keep_modes),
)
CATALOGUE.add(
    "modes-not-in-snapshots",
    "a restart forgets no request mode",
    (RequestModeTable, "capture_frames", lambda _self, _now: {}),
)


def _put_at_once(self: AssignmentRequests, request: Request) -> None:
    body = decode_body(RequestModeBody, request.body, "request mode")
    pops = body.mode is RequestMode.POP
    command = PutRequestMode(body.topic, body.consumer_group, pops, body.pop_share_queue_num)
    self._machine.stage_command(command, lambda _error: None)
    request.respond()


CATALOGUE.add(
    "mode-answered-when-staged",
    "a request mode that was set is told by every later leader",
    (AssignmentRequests, "put_mode", _put_at_once),
)
