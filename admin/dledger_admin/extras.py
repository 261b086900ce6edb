"""Packages that a command needs beyond the base install, and the command that brings them."""

from __future__ import annotations

import importlib.util

from dledger_base.extras import install_command

from .errors import AdminError


def require(extra: str, *modules: str) -> None:
    """Raise `AdminError` with the pip command for `extra` unless all `modules` can be imported."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise AdminError(f"this command needs the extra {extra} ({', '.join(missing)}): {install_command(extra)}")
