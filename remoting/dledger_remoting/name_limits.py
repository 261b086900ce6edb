"""Limits of names. Executors of Spark import them, and have no package but Python's own."""

from __future__ import annotations

from typing import Final

MAX_PIN_NAME_BYTES: Final = 255
"""Maximum size in bytes of a pin's name, in UTF-8."""
