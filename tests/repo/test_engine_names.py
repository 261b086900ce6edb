"""Nothing depends on an engine's name but finding its kind, and reading what was stored before engines had names."""

import ast
from pathlib import Path

import pytest

from dledger.types import ENGINES

ROOT = Path(__file__).resolve().parents[2]
COMPARING = {
    "dledger/dledger/engines/named.py": "finds a kind by its name",
    "dledger/dledger/store/identity.py": "an identity that names none is the native engine's",
}


def _names_an_engine(node: ast.expr, whole: str) -> bool:
    """By its constant, or by itself where the rest speaks of an engine: a target of chaos runs has such a name, too."""
    if isinstance(node, ast.Constant):
        return node.value in ENGINES and "engine" in whole
    return ast.unparse(node).endswith(("NATIVE_ENGINE", "PYSYNCOBJ_ENGINE"))


def comparisons(source: str) -> list[int]:
    """The lines that compare something with an engine's name."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Compare)
        and any(_names_an_engine(side, ast.unparse(node)) for side in (node.left, *node.comparators))
    ]


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("if engine == NATIVE_ENGINE: pass", 1),
        ("x = [] if 'pysyncobj' != types.engine else [1]", 1),
        ("x = target == 'pysyncobj'", 0),
        ("if identity.engine != engine: pass", 0),
        ("engine = NATIVE_ENGINE", 0),
    ],
)
def test_comparisons_are_found(line: str, count: int) -> None:
    assert len(comparisons(line)) == count


def test_no_code_compares_an_engines_name() -> None:
    folders = (
        "remoting",
        "dledger",
        "serving",
        "namesrv",
        "broker",
        "client",
        "pipeline",
        "admin",
        "simulation",
        "chaos",
        "bench",
    )
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        for line in comparisons(path.read_text())
    }
    assert {place.partition(":")[0] for place in found} <= set(COMPARING), found
