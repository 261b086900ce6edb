"""Other vendors' clients, each in a process of its own and driven by JSON lines.

A driver (`cpp_driver.py`, `node/driver.js`, `java/Driver.java`, `go/main.go`) reads one call per line on its standard
input and writes JSON lines on its standard output:

    in   {"id": 1, "call": "send", "topic": "T", "body": "text", ...}
    out  {"id": 1, "result": ...}            or  {"id": 1, "error": "what the client said"}
    out  {"received": "C1", "topic": "T", "body": "text", ...}      a push consumer's message, at any time
    out  {"sent": 17, "body": "text", "ms": 3.2}                    a numbered send of `stream` was acknowledged
    out  {"checked": "text"}                    a broker asked for the state of this transaction
    out  {"failed": 17, "error": "..."}                             one attempt of that send failed and is repeated

The clients run unmodified. They run in another process because the C++ client has threads of its own and aborts on some
errors.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

CALL_SECONDS = 60.0
JAVA_CLIENTS = ("java-5.3.3", "java-4.9.8")
GO_CLIENT = "go-2.1.2"
"""Name of the Go client. `go/go.mod` must name the same version."""


class StockClientError(Exception):
    """Error of a stock client, in its own words, or the loss of its process."""


class StockClient:
    """One driver process, and all its output so far."""

    def __init__(self, command: list[str], *, home: Path, environment: Mapping[str, str] | None = None) -> None:
        self.received: list[dict[str, object]] = []
        self.sent: dict[int, dict[str, object]] = {}
        self.sends = 0
        self.failed: list[dict[str, object]] = []
        self.checked: set[str] = set()
        self._answers: dict[int, dict[str, object]] = {}
        self._changed = threading.Condition()
        self._next_id = 0
        home.mkdir(parents=True, exist_ok=True)
        self._errors_file = home / "stderr.txt"
        with self._errors_file.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=home,
                env={**os.environ, "HOME": str(home), **(environment or {})},
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def call(self, name: str, /, *, timeout: float = CALL_SECONDS, **arguments: object) -> object:
        """Make a call, wait, and return its result. Raise `StockClientError` if it fails."""
        call_id = self.begin(name, **arguments)
        self.wait_for(lambda: call_id in self._answers, f"{name} was not answered", timeout=timeout)
        answer = self._answers.pop(call_id)
        if "error" in answer:
            raise StockClientError(f"{name}: {answer['error']}")
        return answer["result"]

    def begin(self, name: str, /, **arguments: object) -> int:
        """Start a call without waiting for its end, and return the call's id."""
        with self._changed:
            self._next_id += 1
            call_id = self._next_id
        assert self._process.stdin is not None
        line = json.dumps({"id": call_id, "call": name, **arguments}) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise StockClientError(f"{name}: the client is gone: {self.errors()}") from None
        return call_id

    def wait_for(self, condition: Callable[[], bool], otherwise: str, *, timeout: float = CALL_SECONDS) -> None:
        """Wait until the client's output makes `condition` true. Raise `StockClientError` if that takes too long."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0 or not self._reader.is_alive():
                    raise StockClientError(f"{otherwise} after {timeout:g} s: {self.errors()}")
                self._changed.wait(min(left, 1.0))

    def bodies(self, consumer: str) -> list[str]:
        """Return the bodies that a push consumer was given, in order, including redeliveries."""
        with self._changed:
            return [str(message["body"]) for message in self.received if message["received"] == consumer]

    def acknowledged(self) -> set[str]:
        """Return the bodies that `stream` saw acknowledged."""
        with self._changed:
            return {str(one["body"]) for one in self.sent.values()}

    def errors(self) -> str:
        """Return the end of the client's standard error."""
        return self._errors_file.read_text(encoding="utf-8", errors="replace")[-2000:]

    def kill(self) -> None:
        """Kill the process as if its machine were gone, so that it announces nothing."""
        self._process.kill()

    def close(self) -> None:
        """End the process: by the end of its input, or else by force."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            with self._changed:
                if "received" in said:
                    self.received.append({**said, "at": time.monotonic()})
                elif "checked" in said:
                    self.checked.add(said["checked"])
                elif "sent" in said:
                    self.sent[said["sent"]] = said
                    self.sends += 1
                elif "failed" in said:
                    self.failed.append(said)
                else:
                    self._answers[said["id"]] = said
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()
