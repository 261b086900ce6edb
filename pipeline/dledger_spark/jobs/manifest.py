"""A manifest: one version of an archive, whole. The archive is what its highest version says, and nothing else.

`manifests/<version, 20 digits>.json`:

| field | |
|---|---|
| `format` | 1 |
| `version`, `committed_ms` | from 1, without gaps; when, in ms since 1970 |
| `kind`, `run` | `archive` or `compaction`; the folder `data/run=<run>` that it added |
| `columns` | the columns of the rows, in their order |
| `queues` | `topic`, `group`, `queue_id`; `created`, the position at which the topic's incarnation starts; `next`, the offset below which everything of this incarnation that was kept is archived |
| `files` | `path` below the archive's folder, `topic`, `day`, `rows`, `size_bytes` |
"""  # noqa: E501 (a table's row)

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

import msgspec

from ..errors import JobError
from ..offsets import Queue
from .storage import Storage

FORMAT: Final = 1
FOLDER: Final = "manifests"
Kind: TypeAlias = Literal["archive", "compaction"]


class ArchivedFile(msgspec.Struct, frozen=True):
    """One Parquet file; `day` is that of the store times in it, UTC, as `YYYY-MM-DD`."""

    path: str
    topic: str
    day: str
    rows: int
    size_bytes: int


class ArchivedQueue(msgspec.Struct, frozen=True):
    """Progress of the archive in a queue."""

    topic: str
    group: str
    queue_id: int
    created: int
    next: int

    @property
    def queue(self) -> Queue:
        """The queue."""
        return Queue(self.topic, self.group, self.queue_id)


class Manifest(msgspec.Struct, frozen=True):
    """One version of an archive."""

    version: int
    committed_ms: int
    kind: Kind
    run: str
    columns: list[str]
    queues: list[ArchivedQueue]
    files: list[ArchivedFile]
    format: int = FORMAT

    @property
    def rows(self) -> int:
        """Number of rows in the archive."""
        return sum(file.rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        """Size of its files in bytes."""
        return sum(file.size_bytes for file in self.files)

    def archived(self) -> dict[Queue, ArchivedQueue]:
        """Return the progress by queue."""
        return {queue.queue: queue for queue in self.queues}


EMPTY: Final = Manifest(version=0, committed_ms=0, kind="archive", run="", columns=[], queues=[], files=[])
"""The archive before its first run."""


class Manifests:
    """The manifests of one archive."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def versions(self) -> list[int]:
        """Return the versions that are kept, ascending."""
        return sorted(
            int(name.removesuffix(".json"))
            for name in self._storage.names(FOLDER)
            if name.endswith(".json") and name.removesuffix(".json").isdecimal()
        )

    def read(self, version: int | None = None) -> Manifest:
        """Return one version, the latest by default: `EMPTY` without any version yet. Raises `JobError`."""
        versions = self.versions()
        if version is None:
            if not versions:
                return EMPTY
            version = versions[-1]
        if version not in versions:
            kept = f"{versions[0]} to {versions[-1]} are kept" if versions else "it has none"
            raise JobError(f"the archive {self._storage.url} has no version {version}: {kept}")
        try:
            manifest = msgspec.json.decode(self._storage.read(_name(version)), type=Manifest)
        except msgspec.DecodeError as error:
            raise JobError(f"{self._storage.url}/{_name(version)} cannot be read: {error}") from error
        if manifest.format != FORMAT:
            raise JobError(f"{self._storage.url}/{_name(version)} has format {manifest.format}, only {FORMAT} is known")
        return manifest

    def commit(self, manifest: Manifest) -> None:
        """Publish the next version: from now on it is the archive.

        Raises `JobError` if another run published this version first: then nothing of this run is in the archive.
        """
        try:
            self._storage.create(_name(manifest.version), msgspec.json.format(msgspec.json.encode(manifest)))
        except FileExistsError:
            raise JobError(
                f"another run has committed version {manifest.version} of the archive {self._storage.url} meanwhile; "
                "nothing of this one is in it: run it again"
            ) from None

    def sweep(self, before: float) -> None:
        """Remove files that killed drivers left before this time, seconds since 1970."""
        self._storage.remove_hidden(FOLDER, before)

    def remove(self, versions: Iterable[int]) -> None:
        """Forget old versions."""
        for version in versions:
            self._storage.remove(_name(version))


def _name(version: int) -> str:
    return f"{FOLDER}/{version:020d}.json"
