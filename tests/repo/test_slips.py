"""A slip is found wherever its function is, is caught only by its own assertion, and leaves no trace in the tree."""

from pathlib import Path

import pytest

from tests.repo.ci_programs import ROOT, ci_module

anchors, table, promises = ci_module("anchors"), ci_module("promise_table"), ci_module("promises")
slip_runs, slips = ci_module("slip_runs"), ci_module("slips")
Slip, Clause, Promise = table.Slip, table.Clause, table.Promise
SOURCE = '''"""Prices."""

RATE = 2


class Shop:
    def price(self, count: int) -> int:
        """Return the price."""
        if count > 10:
            count = 10
        return count * RATE

    def other(self) -> int:
        return RATE
'''


def slip(where="dledger_shop.prices:Shop.price", text="count * RATE", becomes="count", fails="== 8", **more):
    return Slip(name="cheap", hurts="the shop", where=where, text=text, becomes=becomes, fails=fails, **more)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Create a tree with a component, and a test of it."""
    package = tmp_path / "shop" / "dledger_shop"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "prices.py").write_text(SOURCE)
    return tmp_path


def test_a_part_of_a_line_and_whole_lines_are_replaced_inside_the_function_alone(tree: Path) -> None:
    change = anchors.change_of(tree, slip())
    assert change.text == SOURCE.replace("count * RATE", "count")
    change = anchors.change_of(tree, slip(text="if count > 10:\n    count = 10\n", becomes="count = max(count, 3)\n"))
    assert "        count = max(count, 3)\n        return count * RATE\n" in change.text
    change = anchors.change_of(tree, slip(where="dledger_shop.prices:RATE", text="2", becomes="3"))
    assert change.text == SOURCE.replace("RATE = 2", "RATE = 3")


def test_a_function_that_moved_is_named_with_its_module(tree: Path) -> None:
    package = tree / "shop" / "dledger_shop"
    (package / "prices.py").rename(package / "sales.py")
    with pytest.raises(anchors.MovedError, match=r"has moved to dledger_shop\.sales:Shop\.price") as moved:
        anchors.change_of(tree, slip())
    assert moved.value.now == "dledger_shop.sales:Shop.price"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"where": "dledger_shop.prices:Shop.cost"}, "no module of dledger_shop has Shop.cost"),
        ({"where": "dledger_mill.prices:Shop"}, "no package dledger_mill"),
        ({"text": "count + RATE"}, "0 times, not once"),
        ({"text": "count"}, "times, not once"),
        ({"text": "if count > 10:\n    count = 11"}, "its lines 0 times"),
        ({"becomes": "count *"}, "no Python after it"),
    ],
)
def test_a_slip_that_does_not_apply_says_why(tree: Path, wrong: dict[str, str], told: str) -> None:
    with pytest.raises(anchors.AnchorError, match=told):
        anchors.change_of(tree, slip(**wrong))


def test_a_check_catches_a_slip_with_its_own_assertion_only(tmp_path: Path) -> None:
    """The product is a real package, so that the copy is tried as it is."""
    tree = tmp_path / "checkout"
    for name in ("base/dledger_base/__init__.py", "base/dledger_base/invariants.py", ".ci/slip_report.py"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes((ROOT / name).read_bytes())
    (tree / "base/dledger_base/prices.py").write_text(SOURCE)
    (tree / "pytest.ini").write_text("[pytest]\n")
    (tree / "test_prices.py").write_text(
        "from dledger_base.prices import Shop\n\n\ndef test_price():\n    assert Shop().price(4) == 8\n"
        "\n\ndef test_other():\n    assert Shop().other() == 2\n"
    )
    files = [path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()]
    (tree / ".venv").mkdir()
    copy = slip_runs.Copy(tree, files, tmp_path)
    price, other = Clause(check="test_prices.py::test_price"), Clause(check="test_prices.py::test_other")
    where = "dledger_base.prices:Shop.price"
    assert not copy.run_clean(price).caught
    assert copy.run(price, slip(where)).told == "assert Shop().price(4) == 8"
    for clause, one, told in (
        (other, slip(where), "NOTHING FAILED"),
        (price, slip(where, fails="== 9"), "failed elsewhere"),
        (price, slip(where, error="OSError"), "failed elsewhere"),
        (price, slip("dledger_base.prices:RATE", "RATE = 2", "import nothing_at_all"), "failed elsewhere"),
    ):
        verdict = copy.run(clause, one)
        assert not verdict.caught
        assert verdict.told.startswith(told)
    assert not copy.run_clean(price).caught, "no slip is left behind"
    assert (tree / "base/dledger_base/prices.py").read_text() == SOURCE


def test_a_row_is_whole_once_each_of_its_words_has_a_clause_with_a_slip() -> None:
    price = Clause(what=("a price is right",), check="x", slips=(slip(),))
    over_ten = Clause(under=("more than ten",), check="x")
    row = Promise(name="price", says="a price is right, always", under="more than ten")
    assert row.uncovered() == ["a", "price", "is", "right", "always", "more", "than", "ten"][1:]
    part = Promise(name="price", says="a price is right", under="more than ten", clauses=(price, over_ten))
    assert (part.uncovered(), part.is_whole) == ([], False)
    assert Promise(name="price", says="a price is right", under="", clauses=(price,)).is_whole


def test_a_sample_depends_on_the_commit_alone_and_leaves_out_slow_checks() -> None:
    class Options:
        name, promise, runner, sample = (), (), (), 3

    found = table.read(ROOT)
    first, again, other = (slips.chosen(found, Options, commit) for commit in (1, 1, 2))
    assert first == again != other
    assert all(trial.clause is not None and not trial.clause.is_slow for trial in first)


def test_wrong_words_and_checks_of_a_clause_are_findings() -> None:
    row = Promise(name="price", says="a price is right", under="", held_by="`tests/repo/test_slips.py`")
    told = [
        next(promises._wrong_clause(row, clause), "")
        for clause in (
            Clause(what=("a price is wrong",), check="tests/repo/test_slips.py"),
            Clause(check="tests/repo/test_slips.py::test_nothing"),
            Clause(check="tests/repo/test_gone.py"),
            Clause(check="tests/repo/test_tree.py"),
            Clause(what=("price",), check="tests/repo/test_slips.py"),
        )
    ]
    assert ["'a price is wrong'" in told[0], "no test_nothing" in told[1], "no tests/repo/test_gone" in told[2]] == [
        True
    ] * 3
    assert ("does not name" in told[3], told[4]) == (True, "")
