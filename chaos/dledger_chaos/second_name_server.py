"""A name server beside the one that `dledger up` starts, for clusters that list two."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path
from typing import Final

from dledger_admin.cluster.layout import NamesrvPlace
from dledger_admin.cluster.probes import answers_clients
from dledger_admin.cluster.processes import Service

from .errors import TargetError
from .toxiproxy.mesh import SECOND_NAMESRV
from .toxiproxy.server import HOST

START_S: Final = 30.0
_POLL_S: Final = 0.05


class SecondNameServer:
    """A process on a port of 127.0.0.1 with its files in `directory`. It stops when it is killed."""

    def __init__(self, directory: Path, port: int) -> None:
        self._place = NamesrvPlace(port, directory)
        self._service = Service(SECOND_NAMESRV, "dledger_namesrv", self._place.config_file)
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start it, and wait until it answers. Raises `TargetError`."""
        await asyncio.to_thread(self._start_process)

    def _start_process(self) -> None:
        directory = self._place.directory
        directory.mkdir(parents=True, exist_ok=True)
        config = f'host = "{HOST}"\nport = {self._place.port}\ndata = "{directory}"\n'
        self._place.config_file.write_text(config, encoding="utf-8")
        if self._process is not None:
            self._process.wait(START_S)  # it was killed: no other code records its end
        self._process = self._service.spawn()
        deadline = time.monotonic() + START_S
        while not answers_clients(self._place):
            if self._process.poll() is not None or time.monotonic() >= deadline:
                raise TargetError(f"{SECOND_NAMESRV} does not answer: {self._service.last_words()}")
            time.sleep(_POLL_S)
