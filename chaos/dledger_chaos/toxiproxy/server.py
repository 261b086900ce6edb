"""One toxiproxy server process, with its HTTP API on a port of 127.0.0.1."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from toxiproxy import Toxiproxy

from ..errors import TargetError

HOST: Final = "127.0.0.1"
START_S: Final = 10.0
STOP_S: Final = 5.0
CALL_S: Final = 10.0

_POLL_S: Final = 0.01
_OPENER_WITHOUT_PROXY: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opener for calls to 127.0.0.1, which ignores proxies in the environment."""


class ToxiproxyServer:
    """Runs the server while used as a context; every method blocks.

    `client` is PyPI's `toxiproxy-python`, which addresses one server per process. `call` uses the server's own API, for
    calls that the client lacks. `seed` makes jitter and toxicity repeatable.
    """

    def __init__(self, program: Path, port: int, *, log_file: Path, seed: int = 0) -> None:
        self.port = port
        self.client = Toxiproxy()
        self._command = [str(program), "-host", HOST, "-port", str(port), "-seed", str(seed)]
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it and wait for its API; raises `TargetError`."""
        with self._log_file.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        os.environ["NO_PROXY"] = ",".join(filter(None, [os.environ.get("NO_PROXY"), HOST]))  # the client honours it
        self.client.update_api_consumer(HOST, self.port)
        deadline = time.monotonic() + START_S
        while not self._is_answering():
            if self._process.poll() is not None or time.monotonic() >= deadline:
                self.stop()
                raise TargetError(f"toxiproxy does not answer on port {self.port}: see {self._log_file}")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop it; every proxied connection ends."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def call(self, method: str, path: str, body: object = None, *, timeout_s: float = CALL_S) -> object:
        """Call the server's API and return the decoded answer; raises `TargetError` with the server's own words."""
        request = urllib.request.Request(
            f"http://{HOST}:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        try:
            with _OPENER_WITHOUT_PROXY.open(request, timeout=timeout_s) as response:
                answer = response.read()
        except urllib.error.HTTPError as error:
            raise TargetError(f"toxiproxy: {method} {path}: {error.code} {error.read()[:200]!r}") from error
        except OSError as error:
            raise TargetError(f"toxiproxy: {method} {path}: {error}") from error
        return json.loads(answer) if answer else None

    def _is_answering(self) -> bool:
        try:
            self.call("GET", "/version")
        except TargetError:
            return False
        return True
