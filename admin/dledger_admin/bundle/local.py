"""Part of a bundle that the directory of a cluster of this machine tells: logs, configuration, processes, checks."""

from __future__ import annotations

import os
import platform
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dledger_client import Credentials, Tls

from ..cluster.config_files import OVERRIDES_FILE
from ..cluster.layout import ClusterLayout
from ..cluster.lifecycle import services
from ..cluster.manifest import FILE_NAME
from ..cluster.securing import secure_folder
from ..operations.access import Access
from .archive import Archive
from .secrets import CREDENTIALS

MAX_LOG_FILES: Final = 8
"""Maximum number of log files of a node, the newest ones."""
_SECRET_KEYS: Final = ("secret", "key_file", "token_file", "account_file", "credentials")


def add_directory(archive: Archive, layout: ClusterLayout, log_bytes: int) -> None:
    """Add configuration, processes and the last `log_bytes` of each log file, without anything secret."""
    for name in (FILE_NAME, OVERRIDES_FILE):
        _add_file(archive, layout.data_dir / name, f"local/{name}")
    running = {name: service.pid() for name, service in services(layout).items()}
    archive.add_json("local/processes.json", running)
    archive.add_json("local/machine.json", _machine(layout))
    for name, service in services(layout).items():
        _add_file(archive, service.config_file, f"nodes/{name}/{service.config_file.name}")
        _add_logs(archive, name, service.directory / "log", log_bytes)


def secret_files(layout: ClusterLayout) -> Iterator[Path]:
    """Yield the files with secrets that a cluster of this machine uses."""
    yield layout.secret_file
    folder = secure_folder(layout)
    for name in ("access.keys", CREDENTIALS, "node-key.pem"):
        yield folder / name
    for service in services(layout).values():
        try:
            table = tomllib.loads(service.config_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        for key, value in table.items():
            if isinstance(value, str) and any(part in key for part in _SECRET_KEYS):
                yield service.directory / value


def local_access(layout: ClusterLayout, given: Access) -> Access:
    """Return the access to a cluster of this machine: a secured one by its own files unless others are given."""
    folder = secure_folder(layout)
    tls, credentials = given.tls, given.credentials
    try:
        if tls is None and (folder / "ca.pem").exists():
            tls = Tls(str(folder / "ca.pem"))
        if credentials is None and (folder / CREDENTIALS).exists():
            credentials = Credentials(*(folder / CREDENTIALS).read_text(encoding="utf-8").split()[:2])
    except OSError:
        pass  # the folder belongs to another user: the bundle will say who refused
    return Access(given.name_servers, credentials, tls)


def _add_file(archive: Archive, path: Path, name: str) -> None:
    try:
        archive.add(name, path.read_bytes())
    except OSError as error:
        archive.lacks(str(path), error.strerror or error)


def _add_logs(archive: Archive, name: str, folder: Path, log_bytes: int) -> None:
    try:
        files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError as error:
        archive.lacks(f"logs of {name}", f"{folder}: {error.strerror or error}")
        return
    for path in files[:MAX_LOG_FILES]:
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - log_bytes))
                archive.add(f"nodes/{name}/log/{path.name}", file.read())
        except OSError as error:
            archive.lacks(str(path), error.strerror or error)
            continue
        if size > log_bytes:
            archive.lacks(f"{path}", f"only its last {log_bytes:,} of {size:,} bytes are in the bundle")


def _machine(layout: ClusterLayout) -> dict[str, object]:
    disk = os.statvfs(layout.data_dir)
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "load": os.getloadavg(),
        "disk_free_bytes": disk.f_bavail * disk.f_frsize,
        "disk_bytes": disk.f_blocks * disk.f_frsize,
    }
