"""Costs of a run of the tests: processor time by lane and by module, compared with the budget.

Processor time counts a test's own process and all processes that it starts. Other work on the machine changes it less
than the clock's time. On a slower machine most modules take longer by the same factor (`Budget.slowness`), so the
limits are raised by this factor.

`billing.py write` renews the modules in `budget.toml` from the files of the last runs.
"""

from __future__ import annotations

import json
import statistics
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

SHOWN_MODULES = 15
"""Number of modules that a report names."""
LEAST_LISTED_S = 3.0
"""Minimum processor time, in seconds, of a module that the budget lists."""
BUSY = 1.5
"""Factor by which the same work takes more processor time while all processors are busy."""
BUDGET = Path(__file__).with_name("budget.toml")
PARTS = ("test", "long")


class Bill(NamedTuple):
    """Processor time in seconds, by lane and by module, and the clock's time of modules."""

    lanes: Mapping[str, float]
    modules: Mapping[str, float]
    clock: Mapping[str, float]
    left_out_by_module: Mapping[str, int]

    @property
    def total(self) -> float:
        """Processor time of the whole run, in seconds."""
        return sum(self.lanes.values())

    def report(self) -> str:
        """Return the cost of each lane, and of the dearest modules."""
        lines = [f"processor time: {self.total:.0f} s"]
        lines += [
            f"  {seconds:6.0f} s  {lane}" for lane, seconds in sorted(self.lanes.items(), key=lambda one: -one[1])
        ]
        lines.append("dearest modules (processor time, clock):")
        dearest = sorted(self.modules.items(), key=lambda one: -one[1])[:SHOWN_MODULES]
        lines += [f"  {seconds:6.1f} s {self.clock.get(module, 0):6.1f} s  {module}" for module, seconds in dearest]
        return "\n".join(lines)

    def left_out(self) -> str:
        """Return a text about the tests that did not run, and how to run them."""
        count, modules = sum(self.left_out_by_module.values()), len(self.left_out_by_module)
        return (
            f"not run: {count} long tests of {modules} modules, which `make test-all` runs;"
            " Apache's Java and Go clients (`make test-clients`); the native part (`make native test-native`)"
        )


class Budget(NamedTuple):
    """Maximum processor time of `make test` and `make test-all`, and what modules took when it was written."""

    total_s: Mapping[str, float]
    module_s: float
    modules: Mapping[str, Mapping[str, float]]

    def slowness(self, part: str, bill: Bill) -> float:
        """Return the factor by which this machine takes longer than the one of the budget, at least 1.

        It is the median over the modules that the budget lists, so one module that grew does not change it.
        """
        before = self.modules[part]
        ratios = [seconds / before[module] for module, seconds in bill.modules.items() if module in before]
        return max(1.0, statistics.median(ratios)) if ratios else 1.0

    def excess(self, part: str, bill: Bill) -> str:
        """Return a text about the costs above the budget and about what grew, empty if nothing is above it."""
        lines = []
        slowness = self.slowness(part, bill)
        if bill.total > slowness * self.total_s[part]:
            lines.append(
                f"{bill.total:.0f} s of processor time are above the budget of {self.total_s[part]:.0f} s"
                f" (.ci/budget.toml) on a machine {slowness:.1f} times as slow. These grew most:"
            )
            lines += [f"  {text}" for text in self._list_growth(part, bill)]
        if part == "test":
            lines += [
                f"{module} took {seconds:.1f} s of processor time, above {slowness:.1f} x {BUSY:g} x"
                f" {self.module_s:.0f} s: make it cheaper, or mark it long (pytestmark = pytest.mark.long), so that"
                " `make test-all` runs it"
                for module, seconds in bill.modules.items()
                if seconds > slowness * BUSY * self.module_s
            ]
        return "\n".join(lines)

    def _list_growth(self, part: str, bill: Bill) -> Iterator[str]:
        """Yield a text for each module that took more than when the budget was written, the most grown first."""
        before = self.modules[part]
        growth = {module: seconds - before.get(module, LEAST_LISTED_S) for module, seconds in bill.modules.items()}
        for module, more in sorted(growth.items(), key=lambda one: -one[1])[:SHOWN_MODULES]:
            if more > 0:
                yield f"{module}: {bill.modules[module]:.1f} s, {before.get(module, 0):.1f} s before"


def read(lanes: Mapping[str, tuple[Path, Path]]) -> Bill:
    """Read the costs and the JUnit file of each lane."""
    by_lane: dict[str, float] = {}
    modules, clock, left_out = Counter[str](), Counter[str](), Counter[str]()
    for lane, (costs, junit) in lanes.items():
        recorded = json.loads(costs.read_text())
        by_lane[lane] = sum(recorded["seconds"].values())
        modules.update({module: seconds for module, seconds in recorded["seconds"].items() if module.endswith(".py")})
        left_out.update(recorded["left_out"])
        if junit.exists():
            for case in ET.parse(junit).iter("testcase"):  # noqa: S314 - pytest wrote it
                clock[f"{case.get('classname', '').replace('.', '/')}.py"] += float(case.get("time", "0"))
    return Bill(by_lane, modules, clock, left_out)


def load_budget(path: Path) -> Budget:
    """Read the budget."""
    document = tomllib.loads(path.read_text())
    return Budget(
        {part: document[part]["total_s"] for part in PARTS},
        document["module_s"],
        {p: document[p]["modules"] for p in PARTS},
    )


def write_budget(path: Path, results: Path) -> None:
    """Renew the modules of each part that was run, from the files below `results`."""
    budget = load_budget(path)
    head = path.read_text().partition("\nmodule_s")[0]
    lines = [head, f"module_s = {budget.module_s:g}"]
    for part in PARTS:
        files = {file.stem: (file, file.with_suffix(".xml")) for file in (results / part).glob("*.json")}
        modules = read(files).modules if files else budget.modules[part]
        lines += ["", f"[{part}]", f"total_s = {budget.total_s[part]:g}", f"[{part}.modules]"]
        lines += [f'"{name}" = {seconds:.1f}' for name, seconds in sorted(modules.items()) if seconds >= LEAST_LISTED_S]
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["write"]:
        sys.exit("usage: billing.py write")
    write_budget(BUDGET, BUDGET.parent.parent / ".test-results")
