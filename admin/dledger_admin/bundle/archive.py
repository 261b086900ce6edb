"""Writer of a bundle: a tar file with gzip, in which every file has lost its secrets."""

from __future__ import annotations

import io
import os
import tarfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from .secrets import Scrubber

_MODE: Final = 0o600
_MEANING: Final = """This file tells how a cluster of dledger-mq is. It has no secrets, and no bodies of messages.
It has names of topics, groups, accounts and hosts: look through it before you give it away.

manifest.json      what is in it, what could not be got, and why
cluster/           what name servers and leaders told: health, nodes, live keys, topics, groups
nodes/NAME/        metrics and status of each node, its configuration without secrets, the ends of its logs
verification.json  bytes that do not verify, as nodes told; with --verify also the check of every log
"""


class Missing(msgspec.Struct, frozen=True):
    """Something that a bundle lacks, with the reason."""

    what: str
    why: str


class Manifest(msgspec.Struct, frozen=True):
    """Contents of `manifest.json`."""

    made_at: str
    version: str
    files: list[str]
    missing: list[Missing]


class Archive:
    """A bundle under construction, for a `with` block. The file appears whole, at the end of the block, mode 0600.

    Without a regular end there is no file.
    """

    def __init__(self, path: Path, version: str, scrubber: Scrubber) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.tmp")
        self._version = version
        self._scrubber = scrubber
        self._root = path.name.partition(".")[0]
        self._files: list[str] = []
        self.missing: list[Missing] = []

    def __enter__(self) -> Self:
        descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE)
        self._file = os.fdopen(descriptor, "wb")
        self._tar = tarfile.open(fileobj=self._file, mode="w:gz")
        self._put("README.txt", _MEANING.encode())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                manifest = Manifest(_now(), self._version, sorted(self._files), self.missing)
                self._put("manifest.json", _indented(manifest))
            self._tar.close()
            self._file.close()
            if kind is None:
                self._temporary.replace(self._path)
        finally:
            self._temporary.unlink(missing_ok=True)

    @property
    def count(self) -> int:
        """Number of files, without the ones that describe the bundle."""
        return len(self._files)

    def add(self, name: str, data: bytes) -> None:
        """Add a file."""
        self._put(name, data)
        self._files.append(name)

    def add_json(self, name: str, value: object) -> None:
        """Add a value as JSON."""
        self.add(name, _indented(value))

    def lacks(self, what: str, why: object) -> None:
        """Note that something could not be got."""
        self.missing.append(Missing(what, self._scrubber.scrub(str(why).encode()).decode(errors="replace")))

    def _put(self, name: str, data: bytes) -> None:
        data = self._scrubber.scrub(data)
        entry = tarfile.TarInfo(f"{self._root}/{name}")
        entry.size = len(data)
        entry.mode = _MODE
        entry.mtime = int(time.time())
        self._tar.addfile(entry, io.BytesIO(data))


def _indented(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
