"""`dledger log export`: messages of a node's directory as lines of JSON, or sent into another cluster.

The log may be damaged. All entries that can be read are exported.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import click
import msgspec

from dledger.errors import LogError
from dledger.store.disk import OsDisk
from dledger.store.identity import read_identity
from dledger.store.salvage import Gap, SalvagedEntry, salvage_entries
from dledger_client import ClientError, Message, MessageQueue, Producer, ReceivedMessage
from dledger_client.messages import received_message
from dledger_remoting.errors import RemotingError
from dledger_remoting.properties import RESERVED_NAMES
from dledger_remoting.record import iter_records
from dledger_remoting.topics import is_system_topic

from ..errors import AdminError
from ..operations.messages import MessageView, view
from ..output import say, write_out
from .client_calls import run
from .names import TOPIC
from .options import NameServers, time_ms
from .signing import signing

NODE_DIRECTORY: Final = click.Path(path_type=Path, file_okay=False)
_MAX_CONCURRENT_SENDS: Final = 200
"""Maximum number of messages that are sent into another cluster at the same time."""


class Exported(MessageView, frozen=True, kw_only=True):
    """A message as JSON. `committed` is false if the directory does not prove that the message is committed."""

    committed: bool


@dataclass(slots=True)
class _ExportFilter:
    """Filter of an export, with counts of exported and omitted messages, and the gaps in the log."""

    topics: frozenset[str]
    begin_ms: int
    end_ms: int
    with_system: bool
    group: str
    messages: int = 0
    left_out: int = 0
    gaps: list[Gap] = field(default_factory=list)

    def matches(self, message: ReceivedMessage) -> bool:
        if not self.begin_ms <= message.stored_timestamp_ms < self.end_ms:
            return False
        if self.topics:
            return message.queue.topic in self.topics
        if is_system_topic(message.queue.topic) and not self.with_system:
            self.left_out += 1
            return False
        return True


@click.command("export")
@click.argument("directory", metavar="DIR/NODE-ID", type=NODE_DIRECTORY)
@click.option(
    "--topic",
    "topics",
    type=TOPIC,
    multiple=True,
    help="Only this topic; repeatable.  [default: all but system topics]",
)
@click.option(
    "--from",
    "begin",
    metavar="TIME",
    help="Only messages that were stored at this time or later, given as with `consume`.",
)
@click.option("--to", "end", metavar="TIME", help="Only messages that were stored before this time.")
@click.option("--system", is_flag=True, help="Also system topics: delayed messages, open transactions.")
@click.option(
    "--into", "namesrv", type=NameServers(), metavar="HOST:PORT", help="Send into the cluster of these name servers."
)
def export_command(
    directory: Path, topics: tuple[str, ...], begin: str | None, end: str | None, system: bool, namesrv: str | None
) -> None:
    """Write the messages in a node's directory as lines of JSON, or send them into another cluster.

    The node may run or be stopped, and its log may be damaged. All entries that verify are exported. Bytes that cannot
    be read are named on standard error, and make the exit code 1. Nothing is changed.
    """
    try:
        disk = OsDisk(str(directory), read_only=True)
        identity = read_identity(disk, str(directory))
        if identity is None:
            raise AdminError(f"{directory} holds no node: there is no identity.json; name a node's directory")
        export_filter = _ExportFilter(
            frozenset(topics),
            0 if begin is None else time_ms("--from", begin),
            1 << 62 if end is None else time_ms("--to", end),
            system,
            identity.group,
        )
        messages = _select_messages(disk, identity.segment_bytes, export_filter)
        if namesrv is None:
            _write(messages)
        else:
            run(partial(_send, namesrv, messages), namesrv)
    except (LogError, OSError) as error:
        raise AdminError(str(error)) from error
    _report(export_filter)
    if export_filter.gaps:
        sys.exit(1)


def _select_messages(
    disk: OsDisk, segment_bytes: int, export_filter: _ExportFilter
) -> Iterator[tuple[ReceivedMessage, bool]]:
    """Yield the messages that pass the filter, each with whether it is known to be committed."""
    for item in salvage_entries(disk, segment_bytes):
        if isinstance(item, Gap):
            export_filter.gaps.append(item)
            continue
        for message in _decode_records(item, export_filter):
            if export_filter.matches(message):
                export_filter.messages += 1
                yield message, item.committed


def _decode_records(entry: SalvagedEntry, export_filter: _ExportFilter) -> Iterator[ReceivedMessage]:
    try:
        for record in iter_records(entry.records):
            yield received_message(record, MessageQueue(record.topic, export_filter.group, record.queue_id))
    except RemotingError as error:
        say(f"warning: entry {entry.meta.index} holds records that cannot be read: {error}")


def _write(messages: Iterator[tuple[ReceivedMessage, bool]]) -> None:
    for message, committed in messages:
        fields = msgspec.structs.asdict(view(message))
        write_out(msgspec.json.encode(Exported(**fields, committed=committed)) + b"\n")


async def _send(namesrv: str, messages: Iterator[tuple[ReceivedMessage, bool]]) -> None:
    """Send the messages in the order of their queues, `_MAX_CONCURRENT_SENDS` at a time."""
    async with Producer(namesrv, **signing()) as producer:
        while batch := await asyncio.to_thread(lambda: list(islice(messages, _MAX_CONCURRENT_SENDS))):
            await asyncio.gather(*(_send_one(producer, message) for message, _ in batch))


async def _send_one(producer: Producer, message: ReceivedMessage) -> None:
    properties = {name: value for name, value in message.properties.items() if name not in RESERVED_NAMES}
    copy = Message(
        message.body,
        message.keys or None,
        message.tags,
        properties or None,
        ordering_key=f"{message.queue.broker_group}/{message.queue_id}",
    )
    try:
        await producer.send(message.topic, copy)
    except ClientError as error:
        place = f"{message.topic}/{message.queue_id} at offset {message.queue_offset}"
        raise AdminError(f"{place} was not sent; up to {_MAX_CONCURRENT_SENDS} behind it may be: {error}") from error


def _report(export_filter: _ExportFilter) -> None:
    click.echo(f"{export_filter.messages} messages exported", err=True)
    if export_filter.left_out:
        click.echo(f"{export_filter.left_out} of the service's own topics left out: --system shows them", err=True)
    for gap in export_filter.gaps:
        click.echo(f"bytes {gap.start}..{gap.end} of the log could not be read: what stood there is missing", err=True)
