"""The broker groups that a name server has met, kept over a restart: `knownGroups.json`.

RocketMQ's name servers forget a group when its last node leaves, and clients then send what belongs to its queues to
other groups. Ours remember what it held until it comes back or somebody says that it is gone for good, and tell those
who ask for absent groups (`INCLUDE_ABSENT_FIELD`): a key keeps its queue, and a read of everything says what it lacks.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from dledger_remoting.bodies import decode_body, encode_body
from dledger_remoting.errors import BodyError

from .files import replace_file
from .records import KnownGroup
from .table import RouteTable

log = logging.getLogger("dledger.namesrv")

FILE_NAME: Final = "knownGroups.json"
SAVE_INTERVAL_S: Final = 0.5
"""How long a change may stay in memory only, with topics that are written quickly."""
PAUSES_PER_SAVE: Final = 20
"""How many times as long as saving took is the pause after it at least."""


class _Stored(msgspec.Struct, rename="camel"):
    groups: dict[str, KnownGroup] = {}


class KnownGroupsError(Exception):
    """The file cannot be read; the text says why, and what to do."""


class KnownGroupsFile:
    """The file of one data directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        self._body = b""
        self._failing = False
        self._saving = threading.Lock()

    def load(self) -> dict[str, KnownGroup]:
        """What was saved last, nothing if there is no file. Raises `KnownGroupsError`."""
        try:
            self._body = self._path.read_bytes()
            return decode_body(_Stored, self._body, "known groups").groups
        except FileNotFoundError:
            return {}
        except (OSError, BodyError) as error:
            raise KnownGroupsError(f"{self._path} cannot be read: {error}; repair it or move it away") from error

    def save(self, groups: Mapping[str, KnownGroup]) -> None:
        """Write the groups if they differ from what is there; what cannot be written is logged, and tried anew."""
        with self._saving:
            body = encode_body(_Stored(dict(groups)))
            if body == self._body:
                return
            try:
                replace_file(self._path, body)
            except OSError as error:
                if not self._failing:
                    log.error(
                        "event=known_groups_not_written path=%s error=%r consequence=%r",
                        self._path, str(error), "broker groups met since are not known after a restart",
                    )  # fmt: skip
                self._failing = True
            else:
                self._body = body
                self._failing = False

    async def keep(self, table: RouteTable) -> None:
        """Save what a table knows after every change, for ever."""
        saved = -1
        pause_s = SAVE_INTERVAL_S
        while True:
            await asyncio.sleep(pause_s)
            if self._failing or table.version != saved:
                saved = table.version
                began = time.monotonic()
                await asyncio.to_thread(self.save, table.known_groups())
                # All topics are written, however few have changed: with very many that must not be all that is done.
                pause_s = max(SAVE_INTERVAL_S, PAUSES_PER_SAVE * (time.monotonic() - began))
