"""Plugin of pytest (`-p tests.costs --costs FILE`) that writes the processor time of each module as JSON.

Processor time includes all processes that a module starts, also those that still run when the module ends. The file
also lists by module the tests that a marker left out.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

COLLECTION = "collection"
"""Name that stands for imports and collection in the table of costs."""
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def of_living(pid: int) -> float:
    """Return the seconds of all living descendants of a process, and of the ended ones that these have reaped."""
    total = 0.0
    # The time of a process that ends meanwhile is counted with its parent.
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, fields[11:15])) / TICKS_PER_SECOND + of_living(int(child))
    return total


class Costs:
    """Processor time and left-out tests by module."""

    def __init__(self, file: Path, root: Path) -> None:
        self._file = file
        self._root = root
        self._spent = 0.0
        self._seconds: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()

    def _module(self, item: pytest.Item) -> str:
        return item.path.relative_to(self._root).as_posix()

    def _charge(self, module: str) -> None:
        """Charge all time since the last call to a module."""
        spent = sum(os.times()[:4]) + of_living(os.getpid())
        self._seconds[module] += max(0.0, spent - self._spent)
        self._spent = spent

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._left_out.update(map(self._module, items))

    def pytest_collection_finish(self) -> None:
        self._charge(COLLECTION)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        done = yield
        if nextitem is None or nextitem.path != item.path:
            self._charge(self._module(item))
        return done

    def pytest_sessionfinish(self) -> None:
        rounded = {module: round(seconds, 2) for module, seconds in self._seconds.items()}
        self._file.write_text(json.dumps({"seconds": rounded, "left_out": self._left_out}, indent=1))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, metavar="FILE", help="write the processor time of each module to FILE")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--costs")
    if file is not None:
        config.pluginmanager.register(Costs(file, config.rootpath))
