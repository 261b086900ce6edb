"""Every check there is. `docs/promises.md` lists the same names."""

from __future__ import annotations

from typing import Final

from .base import Check

CHECKS: Final[tuple[Check, ...]] = ()
