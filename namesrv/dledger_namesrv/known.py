"""The broker groups that a name server has known, kept over a restart in `knownGroups.json`.

RocketMQ's name servers forget a group when its last node leaves. Clients then send messages that belong to its queues
to other groups. Ours remember its queues until it comes back, or an operator says that it is gone for good. They show
absent groups to clients that ask for them (`INCLUDE_ABSENT_FIELD`). A key then keeps its queue, and a read of
everything reports what is missing.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from dledger_remoting.bodies import decode_body
from dledger_remoting.errors import BodyError

from .kv import replace_file
from .records import KnownGroup
from .table import RouteTable

log = logging.getLogger("dledger.namesrv")

FILE_NAME: Final = "knownGroups.json"
SAVE_INTERVAL_S: Final = 0.5
"""Maximum time that a change stays in memory only, in seconds, if topics are written quickly."""
PAUSES_PER_SAVE: Final = 20
"""Minimum pause after saving, in multiples of the time that saving took."""


PIECE_TOPICS: Final = 1_024
"""Number of topics whose text is made at once. A thread that made the text of a million would delay the event loop."""


class _Stored(msgspec.Struct, rename="camel"):
    groups: dict[str, KnownGroup] = {}


class KnownGroupsError(Exception):
    """The file cannot be read; the text says why, and what to do."""


class KnownGroupsFile:
    """The file of one data directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        self._digest = b""
        """SHA-256 of the file's content."""
        self._is_failing = False
        self._save_lock = threading.Lock()

    def load(self) -> dict[str, KnownGroup]:
        """Return the groups that were saved last, none if there is no file. Raises `KnownGroupsError`."""
        try:
            body = self._path.read_bytes()
            groups = decode_body(_Stored, body, "known groups").groups
        except FileNotFoundError:
            return {}
        except (OSError, BodyError) as error:
            raise KnownGroupsError(f"{self._path} cannot be read: {error}; repair it or move it away") from error
        self._digest = sha256(body).digest()
        return groups

    def save(self, groups: Mapping[str, KnownGroup]) -> None:
        """Write the groups if they differ from the file's. A failure is logged, and the next call tries again."""
        with self._save_lock:
            pieces, digest = [], sha256()
            for piece in _encode_pieces(groups):
                pieces.append(piece)
                digest.update(piece)
            if digest.digest() == self._digest:
                return
            try:
                replace_file(self._path, pieces)
            except OSError as error:
                if not self._is_failing:
                    log.error(
                        "event=known_groups_not_written path=%s error=%r consequence=%r",
                        self._path, str(error), "broker groups met since are not known after a restart",
                    )  # fmt: skip
                self._is_failing = True
            else:
                self._digest = digest.digest()
                self._is_failing = False

    async def keep(self, table: RouteTable) -> None:
        """Save the groups of a table after every change, for ever."""
        saved_version = -1
        pause_s = SAVE_INTERVAL_S
        while True:
            await asyncio.sleep(pause_s)
            if self._is_failing or table.version != saved_version:
                saved_version = table.version
                began = time.monotonic()
                await asyncio.to_thread(self.save, await _copy_groups(table))
                # Every save writes all topics, even if few have changed. With many topics, saving must not take all the
                # time.
                pause_s = max(SAVE_INTERVAL_S, PAUSES_PER_SAVE * (time.monotonic() - began))


async def _copy_groups(table: RouteTable) -> dict[str, KnownGroup]:
    """Return the groups of a table, and let other tasks run after each group.

    A change between two groups is saved next time, because it makes another version.
    """
    groups: dict[str, KnownGroup] = {}
    for name in table.known_names():
        group = table.known_group(name)
        if group is not None:
            groups[name] = group
        await asyncio.sleep(0)
    return groups


def _encode_pieces(groups: Mapping[str, KnownGroup]) -> Iterator[bytes]:
    """Yield the text of `_Stored` in pieces."""
    yield b'{"groups":{'
    separator = b""
    for name, group in groups.items():
        yield separator + msgspec.json.encode(name) + b':{"cluster":' + msgspec.json.encode(group.cluster)
        yield b',"queues":{'
        topics = iter(group.queues.items())
        comma = b""
        while piece := dict(islice(topics, PIECE_TOPICS)):
            yield comma + msgspec.json.encode(piece)[1:-1]
            comma = b","
        yield b"}"
        rest = msgspec.json.encode(msgspec.structs.replace(group, cluster="", queues={}))
        yield rest[len(_EMPTY) - 1 :]
        separator = b","
    yield b"}}"


_EMPTY: Final = msgspec.json.encode(KnownGroup("", {}))
"""The text of a group without optional fields, which would follow its other fields."""
