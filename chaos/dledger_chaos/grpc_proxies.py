"""Proxies for RocketMQ 5's clients beside a cluster, which are killed, stopped and cut off from their clients."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dledger_admin.cluster.layout import ProxyPlace
from dledger_admin.cluster.processes import Service

from .errors import TargetError
from .toxiproxy.server import HOST

START_S: Final = 30.0
_POLL_S: Final = 0.05


class GrpcProxy:
    """A proxy on a port of 127.0.0.1 with its files in `directory`. It stops when it is killed.

    It tells its clients the `advertised` addresses, which are those of links to all proxies.
    """

    def __init__(self, directory: Path, port: int, namesrv: str, advertised: Sequence[str]) -> None:
        self._name = directory.name
        self._place = ProxyPlace(port, directory)
        self._service = Service(self._name, "dledger_proxy", self._place.config_file)
        self._config = (
            f'host = "{HOST}"\ngrpc_port = {port}\nnamesrv = "{namesrv}"\nadvertised = "{";".join(advertised)}"\n'
        )
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start it, and wait until it listens. Raises `TargetError`."""
        await asyncio.to_thread(self._start_process)

    def _start_process(self) -> None:
        self._place.directory.mkdir(parents=True, exist_ok=True)
        self._place.config_file.write_text(self._config, encoding="utf-8")
        if self._process is not None:
            self._process.wait(START_S)  # it was killed: no other code records its end
        self._process = self._service.spawn()
        deadline = time.monotonic() + START_S
        while not _listens(self._place.port):
            if self._process.poll() is not None or time.monotonic() >= deadline:
                raise TargetError(f"{self._name} does not listen: {self._service.last_words()}")
            time.sleep(_POLL_S)


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex((HOST, port)) == 0
