"""Storage of an archive: files by relative names below one folder, on a local disk or any Hadoop file system.

Beyond reading and writing, an archive needs `create`: a file appears whole, under a name that nothing had, or not at
all. So a manifest is the commit of a run.
"""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HIDDEN: Final = ("_", ".")
"""Spark's own files (`_SUCCESS`, checksums, task attempts) begin with one of these."""

_RECURSIVE: Final = True
_NO_OVERWRITE: Final = False


class Storage(Protocol):
    """One folder; names are relative to it and separated by `/`."""

    @property
    def url(self) -> str:
        """The folder as Spark names it."""

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder, no names if the folder does not exist. Hidden names are left out."""

    def files(self, folder: str) -> dict[str, int]:
        """Return the sizes in bytes of all files below a folder, by name; hidden files are left out."""

    def read(self, name: str) -> bytes:
        """Return the content of a file."""

    def create(self, name: str, data: bytes) -> None:
        """Make a file appear, whole and durable. Raises `FileExistsError` if the name is taken."""

    def sync(self, names: list[str]) -> None:
        """Make files that others wrote durable, where the file system does not do so by itself."""

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with everything in it; no error if it does not exist."""

    def remove_hidden(self, folder: str, before: float) -> None:
        """Remove hidden files directly in a folder that were written before this time, seconds since 1970.

        A driver that was killed in `create` has left them.
        """


class LocalStorage:
    """A folder of this machine's disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def url(self) -> str:
        return f"file:{self._folder}"  # Hadoop paths are not percent-encoded

    def names(self, folder: str) -> list[str]:
        path = self._folder / folder
        return sorted(name for name in os.listdir(path) if not name.startswith(_HIDDEN)) if path.is_dir() else []

    def files(self, folder: str) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for parent, folders, names in os.walk(self._folder / folder):
            folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]
            for name in names:
                if not name.startswith(_HIDDEN):
                    path = Path(parent, name)
                    sizes[path.relative_to(self._folder).as_posix()] = path.stat().st_size
        return sizes

    def read(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def create(self, name: str, data: bytes) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            path.hardlink_to(temporary)
        finally:
            temporary.unlink(missing_ok=True)
        for folder in path.parents:  # the first manifest's folder is new, so its own name must become durable, too
            if folder.is_relative_to(self._folder):
                _sync(folder)

    def sync(self, names: list[str]) -> None:
        folders: set[Path] = set()
        for name in names:
            path = self._folder / name
            _sync(path)
            folders.update(parent for parent in path.parents if parent.is_relative_to(self._folder))
        for folder in sorted(folders, reverse=True):
            _sync(folder)

    def remove(self, name: str) -> None:
        path = self._folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def remove_hidden(self, folder: str, before: float) -> None:
        for path in (self._folder / folder).glob(".*"):
            if path.is_file() and path.stat().st_mtime < before:
                path.unlink(missing_ok=True)


class HadoopStorage:
    """A folder of a file system that Spark's Hadoop client supports, such as `hdfs:`; reached through the driver's JVM.

    `create` is as atomic as the file system's rename without overwriting: it is on HDFS, it is not on object stores.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        # Spark's Python API has no file systems of its own: these attributes lead to the JVM.
        jvm: Any = spark._jvm  # noqa: SLF001
        java: Any = spark._jsc  # noqa: SLF001
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001
        configuration = java.hadoopConfiguration()
        self._hadoop: Any = jvm.org.apache.hadoop
        self._no_options = gateway.new_array(getattr(self._hadoop.fs, "Options$Rename"), 0)
        self._io = jvm.org.apache.commons.io.IOUtils
        given_path = self._hadoop.fs.Path(path)
        self._files = given_path.getFileSystem(configuration)
        self._root = self._files.makeQualified(given_path)
        self._context = self._hadoop.fs.FileContext.getFileContext(self._root.toUri(), configuration)

    @property
    def url(self) -> str:
        return str(self._root.toString())

    @property
    def local_folder(self) -> Path | None:
        """The folder, if it lies on this machine's disk."""
        uri = self._root.toUri()
        return Path(uri.getPath()) if uri.getScheme() == "file" else None

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        if not self._files.exists(path):
            return []
        all_names = [status.getPath().getName() for status in self._files.listStatus(path)]
        return sorted(name for name in all_names if not name.startswith(_HIDDEN))

    def files(self, folder: str) -> dict[str, int]:
        path = self._path(folder)
        sizes: dict[str, int] = {}
        if self._files.exists(path):
            listing = self._files.listFiles(path, _RECURSIVE)
            start = len(self._root.toUri().getPath()) + 1
            while listing.hasNext():
                status = listing.next()
                name = status.getPath().toUri().getPath()[start:]
                if not any(part.startswith(_HIDDEN) for part in name.split("/")):
                    sizes[name] = int(status.getLen())
        return sizes

    def read(self, name: str) -> bytes:
        stream = self._files.open(self._path(name))
        try:
            return bytes(self._io.toByteArray(stream))
        finally:
            stream.close()

    def create(self, name: str, data: bytes) -> None:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it ships no types

        path = self._path(name)
        temporary = self._hadoop.fs.Path(path.getParent(), f".{path.getName()}.{uuid.uuid4().hex}")
        stream = self._files.create(temporary, _NO_OVERWRITE)
        stream.write(bytearray(data))
        stream.close()
        try:
            self._context.rename(temporary, path, self._no_options)
        except Py4JJavaError as error:
            self._files.delete(temporary, _RECURSIVE)
            if error.java_exception.getClass().getSimpleName() == "FileAlreadyExistsException":
                raise FileExistsError(str(path.toString())) from error
            raise

    def sync(self, names: list[str]) -> None:
        """Do nothing: these file systems keep closed files."""

    def remove(self, name: str) -> None:
        self._files.delete(self._path(name), _RECURSIVE)

    def remove_hidden(self, folder: str, before: float) -> None:
        path = self._path(folder)
        for status in self._files.listStatus(path) if self._files.exists(path) else ():
            is_old = status.isFile() and status.getModificationTime() < before * 1000
            if is_old and status.getPath().getName().startswith("."):
                self._files.delete(status.getPath(), _RECURSIVE)

    def _path(self, name: str) -> Any:  # noqa: ANN401 (a Java object)
        return self._hadoop.fs.Path(self._root, name)


def open_storage(spark: SparkSession, path: str) -> Storage:
    """Return the storage of a path, which Spark resolves as it does everywhere."""
    storage = HadoopStorage(spark, path)
    return storage if storage.local_folder is None else LocalStorage(storage.local_folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
