"""Log and integrity: how far each node's log is verified, repairs, the forecast of retention, and pins."""

from __future__ import annotations

from typing import Final

import msgspec

from dledger_admin.health.reports import Limits
from dledger_admin.operations import logs
from dledger_admin.operations.broker_groups import broker_groups
from dledger_admin.operations.logs import GroupLog, PinLine
from dledger_client import ClientError

from ..pages import AnyChange, AnyLook, Call, Look, Rows, Search, select_rows

PINS_SECONDS: Final = 5.0
"""Time for which the pins are shared."""


class Logs(msgspec.Struct, frozen=True):
    """A page of the logs of broker groups. `unseen` says why pins are not known, "" if they are."""

    logs: list[GroupLog]
    rows: Rows
    unseen: str


async def list_logs(call: Call, wanted: Search) -> Logs:
    """Return the logs of one page of the broker groups."""
    groups = broker_groups(await call.cluster.survey(call.access), Limits())
    shown, rows = select_rows(groups, wanted, lambda group: group.name)
    pins, unseen = await _pins(call)
    return Logs([logs.describe(group, pins.get(group.name, [])) for group in shown], rows, unseen)


async def _pins(call: Call) -> tuple[dict[str, list[PinLine]], str]:
    async def ask() -> dict[str, list[PinLine]]:
        return await logs.pins(call.admin)

    try:
        return await call.cluster.share(("pins", call.access.credentials), PINS_SECONDS, ask), ""
    except ClientError as error:
        return {}, f"Pins are not known now: {error}"


LOOKS: Final[list[AnyLook]] = [
    Look(
        path="/logs",
        summary="Logs: verification, repairs, retention, pins.",
        wanted=Search,
        answer=list_logs,
        template="logs.html",
        section="logs",
        is_live=True,
    ),
]
CHANGES: Final[list[AnyChange]] = []
