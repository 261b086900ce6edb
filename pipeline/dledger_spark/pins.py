"""Pins of batch reads: their names and their release. A pin keeps retention from the log that a loaded frame needs.

An application pins each broker group under one name, at the lowest position that its frames need. Reads renew the pin.
After each lease the next frames get a new name, so that frames that are no longer read keep nothing. Planners run in
processes of their own. The environment names the application's folder, in which they note their pins.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import tempfile
import time
import uuid
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .errors import RefusedError, SourceError
from .options import read_options
from .plans import INVALID_PARAMETER, Cluster

APPLICATION_VARIABLE: Final = "DLEDGER_SPARK_APPLICATION"
"""Variable for the folder in which planners note their pins; `spark_session` sets it. Its name is the application's."""
RELEASE_TIMEOUT: Final = "2s"
"""Time limit, as an option's text, for releasing a pin at one broker group. Without an answer its lease ends anyway."""
_NOTES: Final = "pins"
_DAEMON: Final = "pyspark.daemon"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Application:
    """The application that pins: its name, its start in seconds since 1970, and the folder for its notes.

    The folder is None if `spark_session` has not set `APPLICATION_VARIABLE`. A start of 0 is the same in all processes.
    """

    name: str
    started: float
    folder: Path | None

    def pin_name(self, lease_ms: int, now: float) -> str:
        """Return the pin's name for frames that are loaded at `now`, seconds since 1970."""
        return f"{self.name}-{int((now - self.started) * 1000 // lease_ms)}"

    def note(self, namesrv: tuple[str, ...], group: str, pin: str) -> None:
        """Remember a pin for `release`."""
        if self.folder is not None and self.folder.is_dir():
            line = json.dumps([list(namesrv), group, pin]) + "\n"
            with (self.folder / _NOTES).open("a", encoding="utf-8") as file:  # one write: planners do not mix lines
                file.write(line)

    def release(self) -> None:
        """Release the noted pins, and remove the folder."""
        if self.folder is None or not self.folder.is_dir():
            return
        notes = self.folder / _NOTES
        lines = set(notes.read_text(encoding="utf-8").splitlines()) if notes.is_file() else set()
        for line in sorted(lines):
            namesrv, group, pin = json.loads(line)
            options = {"namesrv": ";".join(namesrv), "subscribePattern": ".*", "readTimeout": RELEASE_TIMEOUT}
            with closing(Cluster(read_options(options, "batch"))) as cluster:
                release_pin(cluster, group, pin)
        shutil.rmtree(self.folder, ignore_errors=True)


def new_application() -> Application:
    """Return an application of this process and of all processes that it starts."""
    folder = Path(os.environ.get(APPLICATION_VARIABLE) or tempfile.mkdtemp(prefix="dledger-spark-"))
    folder.mkdir(exist_ok=True)  # a JVM that outlives its session still uses the folder from its environment
    os.environ[APPLICATION_VARIABLE] = str(folder)
    return present_application()


def present_application() -> Application:
    """Return the application of this process."""
    folder = Path(os.environ.get(APPLICATION_VARIABLE, ""))
    if folder.name and folder.is_dir():
        return Application(folder.name, _start_time(folder), folder)
    main_spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main_spec is not None and main_spec.name == _DAEMON:  # Spark forks its workers from one process
        return Application(f"spark-{os.uname().nodename}-{os.getppid()}", 0.0, None)
    return _PROCESS_APPLICATION


def pin(cluster: Cluster, namesrv: tuple[str, ...], group: str, name: str, position: int, lease_ms: int) -> bool:
    """Pin a group's log; False, with a warning, if the group has its maximum of pins or does not take the name.

    Raises `RefusedError` if the position is gone, and what `Cluster.ask` raises.
    """
    try:
        cluster.pin(group, name, position, lease_ms)
    except RefusedError as error:
        if error.code != INVALID_PARAMETER:
            raise
        _logger.warning("event=not_pinned group=%s consequence='retention may take it' error=%r", group, error)
        return False
    application = present_application()
    if name.startswith(application.name):  # users and jobs release the pins that they name
        application.note(namesrv, group, name)
    return True


def release_pin(cluster: Cluster, group: str, name: str) -> None:
    """Release a broker group's pin. If the group does not answer, log that: the pin's lease ends by itself."""
    try:
        cluster.unpin(group, name)
    except SourceError as error:
        _logger.warning("event=pin_kept pin=%s consequence='kept until its lease ends' error=%r", name, error)


def _start_time(folder: Path) -> float:
    """Return the start from a file in the folder, or write the present time. Notes change the folder's own times."""
    file = folder / "started"
    try:
        return float(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        now = time.time()
        file.write_text(str(now), encoding="utf-8")
        return now


_PROCESS_APPLICATION: Final = Application(f"spark-{uuid.uuid4()}", time.time(), None)
