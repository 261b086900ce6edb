"""Bugs of how groups consume topics."""

from __future__ import annotations

from dledger_broker.features.assignments.table import RequestModeTable
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("assignments")


CATALOGUE.add(
    "mode-outlives-its-topic",
    "a mode ends with its topic",
    (RequestModeTable, "on_topic_deleted", lambda _self, _topic: None),
)


def _keep_modes(_self: RequestModeTable, _group: str, *, clean_offsets: bool) -> None:
    _ = clean_offsets


CATALOGUE.add(
    "mode-outlives-its-group",
    "a mode ends with its group",
    (RequestModeTable, "on_group_deleted", _keep_modes),
)
CATALOGUE.add(
    "modes-not-in-snapshots",
    "a restart forgets no mode",
    (RequestModeTable, "capture_frames", lambda _self, _now: {}),
)
