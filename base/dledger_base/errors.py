"""Errors that operators act on, of all processes and of the client."""

from __future__ import annotations


class LogError(Exception):
    """Base of all operating errors of a node. Programming errors raise `InvariantError` instead."""


class ConfigError(LogError):
    """A configuration value is unknown, malformed or contradicts another. The text names key, value and remedy."""
