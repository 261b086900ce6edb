"""Workers of Celery as processes, for tests."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.waiting import wait_until

FOLDER = Path(__file__).parent
READY_S = 40.0
STOP_S = 40.0


class Worker:
    """A worker that is ready for work. Its log is in a file of the directory."""

    def __init__(self, directory: Path, broker: str, name: str, *options: str) -> None:
        self.name = f"{name}@test"
        self.log = directory / f"{name}.log"
        (directory / "results").mkdir(exist_ok=True)
        arguments = ["-A", "celery_app", "worker", "-n", self.name, "-l", "INFO", *options]
        environment = {**os.environ, "CELERY_TEST_BROKER": broker, "CELERY_TEST_DIRECTORY": str(directory)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", *arguments],
                cwd=FOLDER,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until(lambda: "ready." in self.text or self.process.poll() is not None, READY_S)
        assert self.process.poll() is None, self.text

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def children(self) -> list[int]:
        """Return the ids of its pool's processes."""
        path = Path(f"/proc/{self.process.pid}/task")
        return [int(number) for thread in path.iterdir() for number in (thread / "children").read_text().split()]

    def terminate(self) -> int:
        """Have it finish its work, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)

    def kill(self) -> None:
        """Kill it with all its processes."""
        children = self.children()
        self.process.kill()
        self.process.wait(STOP_S)
        wait_until(lambda: not any(Path(f"/proc/{child}/cmdline").exists() for child in children))

    def stop(self) -> None:
        """End it, whatever has become of it."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
