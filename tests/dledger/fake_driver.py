"""Driver of a part that a test looks at by itself."""

from __future__ import annotations

from collections.abc import Callable

from dledger.consensus.effects import Output


class FakeDriver:
    """Does at once what a part wants done; what the part complains of stands in the lists.  See `Driver`."""

    is_ready = True
    is_stopped = False

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.suspects: list[int] = []

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)

    def run(self, work: Callable[[], object]) -> None:
        work()

    def pump(self) -> None:
        """Nothing follows from it."""

    def execute(self, output: Output) -> None:
        """As a replica whose engine gives no effects."""

    def suspect(self, index: int) -> None:
        self.suspects.append(index)

    def stage(
        self, size: int, fill: object, commands: object, context: object, *, privileged: bool = False, own: bool = False
    ) -> int:
        return 0


class Unfailing(FakeDriver):
    """One whose part has no reason to fail: the error is the test's."""

    def fail(self, error: BaseException) -> None:
        raise error
