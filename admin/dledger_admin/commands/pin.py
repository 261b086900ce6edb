"""`dledger pin`: what keeps parts of the log from being trimmed."""

from __future__ import annotations

from datetime import UTC, datetime

import click
import msgspec

from dledger_client import Admin

from ..errors import AdminError
from ..help import HelpGroup
from ..output import columns, emit, output_option
from .client_calls import with_admin
from .options import broker_groups_option, namesrv_option


class PinLine(msgspec.Struct, frozen=True):
    """A pin: the group's log is kept from `position` on until `expires` (ISO 8601, UTC)."""

    broker_group: str
    pin: str
    position: int
    expires: str


class PinChange(msgspec.Struct, frozen=True):
    """Result of `pin release`."""

    pin: str
    state: str


@click.group(cls=HelpGroup)
def pin() -> None:
    """List and release pins, by which readers keep parts of the log."""


@pin.command("list")
@namesrv_option
@output_option
def list_pins(namesrv: str, output: str) -> None:
    """List the pins of every broker group."""

    async def work(admin: Admin) -> list[PinLine]:
        return [
            PinLine(group, row.name, row.position, _format_time(row.expires))
            for group, rows in (await admin.pins()).items()
            for row in rows
        ]

    emit(with_admin(namesrv, work), output, _render)


@pin.command()
@namesrv_option
@click.argument("name")
@broker_groups_option
@output_option
def release(namesrv: str, name: str, broker_groups: tuple[str, ...], output: str) -> None:
    """Release a pin, so that retention may trim its part of the log. A missing pin is an error."""

    async def work(admin: Admin) -> None:
        pins = await admin.pins()
        known_pins = {(row.name, group) for group, rows in pins.items() for row in rows}
        if not any((name, group) in known_pins for group in broker_groups or pins):
            where = f" on {', '.join(broker_groups)}" if broker_groups else ""
            known = sorted(f"{pin_name} on {group}" for pin_name, group in known_pins)
            raise AdminError(f"there is no pin {name!r}{where}; there {_enumerate_names(known)}")
        await admin.unpin(name, broker_groups=list(broker_groups) or None)

    with_admin(namesrv, work)
    emit(PinChange(name, "released"), output, lambda result: f"pin {result.pin} {result.state}")


def _enumerate_names(names: list[str]) -> str:
    if not names:
        return "is none at all"
    return f"{'is' if len(names) == 1 else 'are'} {', '.join(names)}"


def _format_time(expires_ms: int) -> str:
    return datetime.fromtimestamp(expires_ms / 1000, tz=UTC).isoformat(timespec="seconds")


def _render(result: list[PinLine]) -> str:
    if not result:
        return "there are no pins: nothing but its age and size keeps the log from being trimmed"
    return columns(
        ("broker group", "pin", "position", "expires"),
        [(line.broker_group, line.pin, line.position, line.expires) for line in result],
    )
