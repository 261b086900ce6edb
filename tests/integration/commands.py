"""The `dledger` command as a process of its own, conditions that no event reports, and a handler that collects."""

from __future__ import annotations

import os
import subprocess
import sys

from dledger_client import ReceivedMessage
from tests.waiting import until  # noqa: F401 - tests import it from here

COMMAND_SECONDS = 60.0
POLL_SECONDS = 40.0


def run(
    *words: object, stdin: str = "", timeout: float = COMMAND_SECONDS, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `dledger` to its end, with more variables of the environment, and return its result, also if it fails."""
    return subprocess.run(
        [sys.executable, "-m", "dledger_admin", *map(str, words)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **environment},
    )


def output(*words: object, code: int = 0, **options: object) -> str:
    """Run `dledger`, check its exit code, and return what it has printed, or its error."""
    done = run(*words, **options)
    assert done.returncode == code, f"{words}: {done.stdout}{done.stderr}"
    return done.stderr if code and not done.stdout else done.stdout


class Bodies(list[bytes]):
    """Handler of a consumer, and the bodies of the messages that it has got."""

    async def __call__(self, message: ReceivedMessage) -> None:
        self.append(message.body)
