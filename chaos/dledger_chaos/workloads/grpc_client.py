"""RocketMQ 5's Python client in a process and a virtual environment of its own, and calls to it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import venv
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec

from dledger_chaos.cache import tool_directory
from dledger_chaos.errors import BuildError

PACKAGE: Final = "rocketmq-python-client"
VERSION: Final = "5.1.2"
DRIVER: Final = Path(__file__).with_name("grpc_driver")
INSTALL_S: Final = 300.0
CALL_S: Final = 60.0
"""Time limit in seconds for a call. The client gives up by itself before."""
END_S: Final = 10.0
MAX_LINE_BYTES: Final = 16 << 20


class GrpcCallError(Exception):
    """A call that the client refused, or that was not answered; the text is the client's own."""


def grpc_environment() -> Path:
    """Return the Python of the client's environment, which is made once per user. Raises `BuildError`."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    directory = tool_directory(f"{PACKAGE}-{VERSION}-python{python}")
    interpreter, done = directory / "bin" / "python", directory / "installed"
    if done.exists():
        return interpreter
    venv.create(directory, with_pip=True, clear=True)
    command = [str(interpreter), "-m", "pip", "install", "--quiet", f"{PACKAGE}=={VERSION}"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise BuildError(f"{PACKAGE} {VERSION} was not installed within {INSTALL_S:g} s: is PyPI reachable?") from None
    if ended.returncode:
        raise BuildError(f"{PACKAGE} {VERSION} cannot be installed from PyPI: {ended.stderr.strip()[-500:]}")
    done.touch()
    return interpreter


class GrpcClient:
    """One process of the client in front of these proxies. Its standard error goes to a file in `directory`."""

    def __init__(self, python: Path, proxies: str, directory: Path) -> None:
        self._python = python
        self._proxies = proxies
        self._directory = directory
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process."""
        with (self._directory / "stderr.txt").open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *(str(self._python), "-P", str(DRIVER), self._proxies),  # -P: modules beside the driver are not its own
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "HOME": str(self._directory)},
                limit=MAX_LINE_BYTES,
            )
        self._reader = asyncio.create_task(self._read(), name="answers of the client")

    async def call(self, name: str, **fields: object) -> Any:  # noqa: ANN401 - what the driver answers
        """Make a call and return its result. Raises `GrpcCallError`."""
        assert self._process is not None
        assert self._process.stdin is not None
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._process.stdin.write(msgspec.json.encode({"id": number, "call": name, **fields}) + b"\n")
            async with asyncio.timeout(CALL_S):
                return await answer
        except (TimeoutError, ConnectionError) as error:
            raise GrpcCallError(f"{name} was not answered: {error!r}") from error
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """End the process."""
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        if self._reader is not None:
            await self._reader

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if not line.startswith(b"{"):
                continue  # a line that the client itself has printed
            said = msgspec.json.decode(line)
            waiting = self._waiting.get(said.get("id"))
            if waiting is None or waiting.done():
                continue
            if "error" in said:
                waiting.set_exception(GrpcCallError(said["error"]))
            else:
                waiting.set_result(said["result"])
        for waiting in list(self._waiting.values()):
            if not waiting.done():
                waiting.set_exception(GrpcCallError("the client's process has ended"))
