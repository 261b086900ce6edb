"""Errors of jobs, beyond those of reading and writing."""

from __future__ import annotations

from ..errors import SourceError


class JobError(SourceError):
    """A job cannot do its work, or found its result inconsistent. Nothing was published."""
