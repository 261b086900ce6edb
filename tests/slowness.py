"""Factor by which this machine is slower than the machine for which limits of processor time were written."""

from __future__ import annotations

import statistics
import time
from typing import Final

ADDITIONS: Final = 200_000
REFERENCE_S: Final = 0.005
"""Processor time of `ADDITIONS` on the machine for which the limits were written."""


def slowness() -> float:
    """Return the factor, at least 1. It is measured anew, since a shared machine changes its speed."""
    took_s = []
    for _ in range(5):
        began = time.thread_time()
        total = 0
        for number in range(ADDITIONS):
            total += number
        took_s.append(time.thread_time() - began)
    return max(1.0, statistics.median(took_s) / REFERENCE_S)
