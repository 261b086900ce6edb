"""Starting, recognising and stopping single processes of a local cluster.

A process is recognised by its pid file *and* its command line, which names its configuration file. The pid in a stale
file may belong to another process by now.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import AdminError
from .files import being_written, make_directory
from .layout import NamesrvPlace, NodePlace, ProxyPlace
from .ports import command_line, has_ended, has_program

PID_FILE = "pid"
NAMESRV = "namesrv"
"""Stands for the name server where a node id is expected."""
PROXY = "proxy"
"""Stands for the proxy where a node id is expected."""

STOPPING_FILE = "stopping"
"""File in the data directory that says what a stopping process still waits for. It changes with its progress."""

KILL_AFTER_S = 10.0
"""Time limit in seconds for a stopping process without progress. Then the process is killed."""
SAY_AFTER_S = 2.0
"""Interval in seconds after which a waiting user is told what is waited for."""

_REPEAT_SIGNAL_S = 0.2
_POLL_S = 0.02
_EXEC_TIMEOUT_S = 10.0
"""Time limit in seconds for a process without a command line, as it has while it begins to execute another program.

That takes a fraction of a millisecond, but longer than 100 ms where many processes wait for a processor.
"""


@dataclass(frozen=True, slots=True)
class Service:
    """One process to run: what it is called, what it executes, where its files are."""

    name: str
    module: str
    config_file: Path

    @property
    def directory(self) -> Path:
        """Its data directory."""
        return self.config_file.parent

    @property
    def stdout_file(self) -> Path:
        """Receives what the process prints."""
        return self.directory / "log" / "stdout.log"

    def command(self) -> list[str]:
        """Return the argument list that starts it."""
        # -P: a user's file in the working directory must not be imported in place of a module of Python.
        options = ["--config", str(self.config_file), "--printed-to", str(self.stdout_file)]
        return [sys.executable, "-P", "-m", self.module, *options]

    def pid(self) -> int | None:
        """Return its process id while it runs, else None."""
        try:
            pid = int((self.directory / PID_FILE).read_text(encoding="ascii").split()[0])
        except (OSError, ValueError, IndexError):
            return None
        return pid if self.is_run_by(_await_command_line(pid)) else None

    def stop_waits_for(self) -> str:
        """Return what its stop still waits for, as it says itself; "" if it says nothing."""
        try:
            return (self.directory / STOPPING_FILE).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def is_run_by(self, command: str) -> bool:
        """Tell whether a command line is that of its process."""
        return f" --config {self.config_file}" in command

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start it in a session of its own, so that a Ctrl-C in this terminal does not reach it.

        The process writes its pid file once it serves. Until then the pid that is written here lets `down` find it. If
        another start was first, its pid stays. The file is never replaced, because a name server locks it.
        """
        make_directory(self.stdout_file.parent, parents=True)
        with being_written(self.stdout_file):
            output = self.stdout_file.open("ab")
        with output:
            process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        try:
            if self.pid() is None:
                _write_pid(self.directory / PID_FILE, process.pid)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process

    def last_words(self) -> str:
        """Return the last line that it printed, and where the others are."""
        try:
            lines = self.stdout_file.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            lines = []
        last_line = next((line.strip() for line in reversed(lines) if line.strip()), None)
        return f"{last_line} ({self.stdout_file})" if last_line else "it printed nothing"


def broker_service(place: NodePlace) -> Service:
    """Return the broker process of a node."""
    return Service(place.node_id, "dledger_broker", place.config_file)


def namesrv_service(place: NamesrvPlace) -> Service:
    """Return the name server process."""
    return Service(NAMESRV, "dledger_namesrv", place.config_file)


def proxy_service(place: ProxyPlace) -> Service:
    """Return the proxy process."""
    return Service(PROXY, "dledger_proxy", place.config_file)


def stop_at_once(
    services: Mapping[str, Service], timeout_s: float = KILL_AFTER_S, say: Callable[[str], None] = lambda _: None
) -> list[str]:
    """Stop all `services` without draining and return the names of those that had to be killed.

    The first SIGTERM would make a broker hand over and drain; repeating it tells it to leave at once. `say` is told
    from time to time what is waited for. A process is killed when it has got no further for `timeout_s`.
    """
    running = _find_running(services)
    for pid in running.values():
        _send_signal(pid, signal.SIGTERM)
        _send_signal(pid, signal.SIGCONT)
    progress = _Progress(services, running, say)
    repeat_at = time.monotonic() + _REPEAT_SIGNAL_S
    killed: dict[str, int] = {}
    while running := _filter_running(services, running):
        now = time.monotonic()
        for name in progress.find_stuck(running, now, timeout_s) - killed.keys():
            killed[name] = running[name]
            _send_signal(running[name], signal.SIGKILL)
        if now >= repeat_at:
            repeat_at = now + _REPEAT_SIGNAL_S
            for pid in running.values():
                _send_signal(pid, signal.SIGTERM)
        time.sleep(_POLL_S)
    return sorted(killed)


class _Progress:
    """The last message of each stopping process, and its time."""

    def __init__(self, services: Mapping[str, Service], names: Iterable[str], say: Callable[[str], None]) -> None:
        now = time.monotonic()
        self._services = services
        self._say = say
        self._last_messages = {name: (services[name].stop_waits_for(), now) for name in names}
        self._say_at = now + SAY_AFTER_S

    def find_stuck(self, running: Iterable[str], now: float, timeout_s: float) -> set[str]:
        """Return those that have said nothing else for `timeout_s`."""
        for name in running:
            message = self._services[name].stop_waits_for()
            if message != self._last_messages[name][0]:
                self._last_messages[name] = (message, now)
        if now >= self._say_at:
            self._say_at = now + SAY_AFTER_S
            for name in running:
                self._say(f"waiting for {name}: {self._last_messages[name][0] or 'it has not said what for'}")
        return {name for name in running if now - self._last_messages[name][1] >= timeout_s}


def stop_started(service: Service, process: subprocess.Popen[bytes]) -> None:
    """Stop a process that this process started at once, even without a pid file; return when it has ended."""
    stop_at_once({service.name: service})
    if process.poll() is None:
        process.kill()
    process.wait()


def stop_gracefully(service: Service, patience_s: float) -> bool:
    """Send one SIGTERM (a broker hands over and drains) and wait; return whether the process is gone.

    The wait goes on as long as the process says something new within `patience_s`. A drain may be set to hours, and the
    files of 20,000 queues take a while.
    """
    services = {service.name: service}
    running = _find_running(services)
    for pid in running.values():
        _send_signal(pid, signal.SIGTERM)
    progress = _Progress(services, running, lambda _: None)
    while running := _filter_running(services, running):
        if progress.find_stuck(running, time.monotonic(), patience_s):
            return False
        time.sleep(_POLL_S)
    return True


def _await_command_line(pid: int) -> str:
    """Return the command line of a process, also of one that was started a moment ago; "" if it has none."""
    deadline = time.monotonic() + _EXEC_TIMEOUT_S
    while not (command := command_line(pid)) and has_program(pid) and time.monotonic() < deadline:
        time.sleep(_POLL_S / 20)
    return command or ""


def _write_pid(path: Path, pid: int) -> None:
    """Write a pid without replacing the file, so that readers find a pid in it at every moment.

    On a full disk nothing is written. The process frees space when it starts, and then writes its pid itself.
    """
    content = b"%d\n" % pid
    try:
        with being_written(path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.pwrite(descriptor, content, 0)
                os.ftruncate(descriptor, len(content))
            finally:
                os.close(descriptor)
    except AdminError:
        pass


def _find_running(services: Mapping[str, Service]) -> dict[str, int]:
    return {name: pid for name, service in services.items() if (pid := service.pid()) is not None}


def _filter_running(services: Mapping[str, Service], pids: Mapping[str, int]) -> dict[str, int]:
    """Return those of `pids` that have not ended. A process loses pid file and command line before it has ended."""
    return {name: pid for name, pid in pids.items() if _is_alive(pid, services[name])}


def _is_alive(pid: int, service: Service) -> bool:
    command = command_line(pid)
    return service.is_run_by(command) if command else not has_ended(pid)


def _send_signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError as error:
        raise AdminError(f"process {pid} belongs to another user: stop it as that one") from error
