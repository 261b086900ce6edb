"""Times and limits in modules stay the same. Most act too rarely for a test or a simulated run to notice another value.

Each is identified by its name, in any module. A new name is no change.
"""

import ast
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.recorded.golden_files import GOLDEN, compare, recorded_bytes

ROOT = Path(__file__).parents[2]
PACKAGES = ("dledger/dledger", "broker/dledger_broker", "base/dledger_base")
NOT_SERVING = ("testing",)
"""Packages that no node runs."""
WRITTEN_OUT = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)


def numbers_in(source: str) -> Iterator[str]:
    """Yield times (`_S`, `_MS`) and limits (`MAX_`, `MIN_`) with literal values of a module, as NAME VALUE."""
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.AnnAssign):
            target, value = statement.target, statement.value
        elif isinstance(statement, ast.Assign):
            target, value = statement.targets[0], statement.value
        else:
            continue
        if value is None or not isinstance(target, ast.Name):
            continue
        name = target.id.lstrip("_")
        if not (name.endswith(("_S", "_MS")) or name.startswith(("MAX_", "MIN_"))):
            continue
        if all(isinstance(node, WRITTEN_OUT) for node in ast.walk(value)):
            number = eval(compile(ast.Expression(value), "<constant>", "eval"))
            if isinstance(number, int | float) and not isinstance(number, bool):
                yield f"{name} {number!r}"


def all_numbers() -> list[str]:
    return sorted(
        number
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if not set(path.relative_to(ROOT / package).parts) & set(NOT_SERVING)
        for number in numbers_in(path.read_text(encoding="utf-8"))
    )


def test_times_and_limits_equal_the_recording() -> None:
    found = all_numbers()
    if os.environ.get("RECORD_GOLDEN") == "yes":
        compare("times_and_limits", found)
    before = recorded_bytes(GOLDEN / "times_and_limits.txt").decode().splitlines()
    changed = Counter(before) - Counter(found)
    assert not changed, f"{sorted(changed)} were recorded, {sorted(Counter(found) - Counter(before))} are new"


def test_times_and_limits_are_found_in_module_constants() -> None:
    source = (
        "A_S: Final = 0.02\n_MAX_BYTES = 1 << 20\nMIN_C: int\nMAX_D = A_S\nMAX_E = 'e'\nMAX_F = True\nSIZE = 3\n"
        "MIN_G = -1\nif A_S:\n    H_MS = 2\n"
    )
    assert list(numbers_in(source)) == ["A_S 0.02", "MAX_BYTES 1048576", "MIN_G -1"]
    assert {"FINDABLE_S 1.0", "COALESCE_S 0.02", "COMPLETE_S 1.0"} <= set(all_numbers())
