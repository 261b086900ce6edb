"""Errors of the rig itself: it cannot carry out a request. They say nothing about the system under test."""

from __future__ import annotations


class ChaosError(Exception):
    """The rig cannot carry out a request; the text names the thing, what was found, and what to do."""


class BuildError(ChaosError):
    """A tool that the rig needs cannot be built on this machine."""


class TargetError(ChaosError):
    """A process of the system under test did not start, stop or answer as required for the run to continue."""
