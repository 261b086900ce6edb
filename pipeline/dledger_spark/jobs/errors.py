"""Errors of jobs, beyond those of reading and writing."""

from __future__ import annotations

from ..errors import SourceError


class JobError(SourceError):
    """A job cannot do what was asked, or found that what it did does not add up; nothing of it was published."""
