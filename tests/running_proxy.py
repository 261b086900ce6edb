"""A proxy in a process of its own, on a free port of 127.0.0.1, for tests that use real clients or kill it."""

from __future__ import annotations

import queue
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

START_SECONDS = 30.0
STOP_SECONDS = 30.0


class RunningProxy:
    """One proxy process in front of a cluster. `config` is TOML text beyond the addresses."""

    def __init__(self, folder: Path, namesrv: str, config: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "proxy.toml"
        self._config = f'namesrv = "{namesrv}"\n{config}'
        self._process: subprocess.Popen[str] | None = None
        self._port = 0
        self.printed: list[str] = []

    @property
    def address(self) -> str:
        """Host and port, which stay the same over restarts."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._file.write_text(f"grpc_port = {self._port}\n{self._config}")
        command = [sys.executable, "-P", "-m", "dledger_proxy", "--config", str(self._file)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        ready: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, args=(self._process, ready), daemon=True).start()
        line = ready.get(timeout=START_SECONDS)
        assert line, f"the proxy ended: {''.join(self.printed)}"
        self._port = int(line.rpartition(":")[2])

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Stop it with SIGTERM, and return its exit code."""
        return self._end(signal.SIGTERM)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        try:
            return self._process.wait(STOP_SECONDS)
        finally:
            self._process.kill()

    def _read(self, process: subprocess.Popen[str], ready: queue.Queue[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self.printed.append(line)
                if line.startswith("proxy ready on "):
                    ready.put(line)
        ready.put("")


def is_open(address: str) -> bool:
    """Return whether somebody listens at an address."""
    host, _, port = address.rpartition(":")
    with socket.socket() as connection:
        return connection.connect_ex((host, int(port))) == 0
