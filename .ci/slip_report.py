"""Plugin of pytest that writes what each failed test raised, for `slips.py` to judge.

`--slip-report=FILE` names the file: a JSON list of failures, each with its test, its phase, and what was raised. The
plugin also refuses to run if the product would come from another tree than the one that holds the tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import dledger_base

failures: list[dict[str, object]] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--slip-report", required=True, help="file for the failures")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse the product of another tree."""
    if not Path(dledger_base.__file__).is_relative_to(config.rootpath):
        raise pytest.UsageError(f"{dledger_base.__file__} is not in {config.rootpath}: the slip would not take effect")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Note what a test raised in any of its phases."""
    report = yield
    if report.failed and call.excinfo is not None:
        statements = [" ".join(str(entry.statement).split()) for entry in call.excinfo.traceback]
        raised = [
            {"types": [kind.__name__ for kind in type(error).__mro__], "message": " ".join(str(error).split())}
            for error in _errors(call.excinfo.value)
        ]
        failures.append({"test": item.nodeid, "when": call.when, "statements": statements, "raised": raised})
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file that cannot be imported."""
    if report.failed:
        failures.append({"test": report.nodeid, "when": "collect", "statements": [], "raised": []})


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the file."""
    Path(session.config.getoption("--slip-report")).write_text(json.dumps(failures), encoding="utf-8")


def _errors(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, and those that it groups or follows from."""
    yield error
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _errors(inner)
    elif error.__cause__ is not None:
        yield from _errors(error.__cause__)
