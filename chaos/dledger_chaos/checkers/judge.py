"""All checkers that apply to a run, and what follows from their verdicts."""

from __future__ import annotations

import traceback
from collections.abc import Iterable

from .base import Check, Result, RunData, Verdict
from .registry import CHECKS


def judge(run: RunData, checks: Iterable[Check] = CHECKS) -> list[Verdict]:
    """The verdicts of all checks that apply. One that fails itself has found nothing out: unknown."""
    return [_check(check, run) for check in checks if check.applies(run)]


def overall(verdicts: Iterable[Verdict]) -> Result:
    """`invalid` if any verdict is, else `unknown` if any is or there is none, else `valid`."""
    results = {verdict.result for verdict in verdicts}
    if "invalid" in results:
        return "invalid"
    return "valid" if results == {"valid"} else "unknown"


def _check(check: Check, run: RunData) -> Verdict:
    try:
        return check.check(run)
    except Exception as error:
        where = traceback.format_exception(error)[-1].strip()
        summary = f"the checker failed: {where}"
        return Verdict(check.name, check.promise, "unknown", summary, traceback.format_exception(error)[-3:])
