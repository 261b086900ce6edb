"""Processes of a service's nodes. They are started here, and stopped by their own pids."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bench.peers.service import CannotRunError

HOST: Final = "127.0.0.1"
STOP_S: Final = 15.0
_POLL_S: Final = 0.05
_SHOWN_CHARACTERS: Final = 300


class Processes:
    """Processes that end with the block: SIGTERM to all, and SIGKILL to those that still run `STOP_S` later.

    They are sessions of their own. Ctrl-C therefore reaches only the benchmark, which stops them in order.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.stop()

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a process whose output goes to `NAME.log` in the directory."""
        with self.log(name).open("ab") as output:
            self._started[name] = subprocess.Popen(
                command,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def log(self, name: str) -> Path:
        """Return the path of a process's output."""
        return self._directory / f"{name}.log"

    def pids(self, names: Iterable[str]) -> list[int]:
        """Return the pids of named processes."""
        return [self._started[name].pid for name in names]

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Wait until `condition` holds. Raises `CannotRunError` when a process ends first, or after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            for name, process in self._started.items():
                if process.poll() is not None:
                    raise CannotRunError(f"{name} ended with {process.returncode}: {self._last_words(name)}")
            if time.monotonic() > deadline:
                raise CannotRunError(f"{what}: not within {timeout_s:g} s")
            time.sleep(_POLL_S)

    def wait_listening(self, ports: Iterable[int], timeout_s: float) -> None:
        """Wait until each port accepts connections."""
        for port in ports:
            self.wait(lambda port=port: _accepts(port), f"port {port} is open", timeout_s)  # type: ignore[misc]

    def stop(self) -> None:
        """Stop all processes, the last one first."""
        processes = list(reversed(self._started.values()))
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + STOP_S
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0))
            process.kill()
            process.wait()
        self._started.clear()

    def _last_words(self, name: str) -> str:
        text = self.log(name).read_text(encoding="utf-8", errors="replace").strip()
        return " ".join(text[-_SHOWN_CHARACTERS:].split())


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
