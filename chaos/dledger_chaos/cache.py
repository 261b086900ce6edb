"""Cache of built tools between runs: one directory per user, shared by all checkouts."""

from __future__ import annotations

import os
from pathlib import Path


def tool_directory(name: str) -> Path:
    """Return `$XDG_CACHE_HOME/dledger-mq/NAME` (`~/.cache/…` without the variable), made if it is missing."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(root) / "dledger-mq" / name
    directory.mkdir(parents=True, exist_ok=True)
    return directory
