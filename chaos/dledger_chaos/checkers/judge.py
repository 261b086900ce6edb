"""Application of all checkers to a run, and the verdict on the whole run."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence

from .base import Check, Result, RunData, Verdict
from .registry import CHECKS


def judge(run: RunData, checks: Iterable[Check] = CHECKS) -> list[Verdict]:
    """Return the verdicts of all checks that apply. The verdict of a check that raises an error is unknown."""
    return [_run_check(check, run) for check in checks if check.applies(run)]


def headline(verdicts: Sequence[Verdict]) -> str:
    """Return the verdict in words, with the number of acknowledged messages that were trimmed before any check."""
    result, unjudged_count = overall(verdicts), unjudged(verdicts)
    return (
        f"{result}, but for {unjudged_count:,} acknowledged messages that trims took before they were judged"
        if unjudged_count
        else result
    )


def unjudged(verdicts: Sequence[Verdict]) -> int:
    """Return the number of acknowledged messages that the check `lost` could not judge because they were trimmed."""
    return next((int(verdict.figures.get("trimmed", 0)) for verdict in verdicts if verdict.name == "lost"), 0)


def overall(verdicts: Iterable[Verdict]) -> Result:
    """Return `invalid` if any verdict is, else `unknown` if any is or there is no verdict, else `valid`."""
    results = {verdict.result for verdict in verdicts}
    if "invalid" in results:
        return "invalid"
    return "valid" if results == {"valid"} else "unknown"


def _run_check(check: Check, run: RunData) -> Verdict:
    try:
        return check.check(run)
    except Exception as error:
        reason = traceback.format_exception(error)[-1].strip()
        summary = f"the checker failed: {reason}"
        return Verdict(check.name, check.promise, "unknown", summary, traceback.format_exception(error)[-3:])
