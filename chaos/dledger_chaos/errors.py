"""Errors of the rig itself: what was asked cannot be done here.  They say nothing about the system under test."""

from __future__ import annotations


class ChaosError(Exception):
    """The rig cannot do what was asked; the text names the thing, what was found, and what to do."""


class BuildError(ChaosError):
    """A tool that the rig needs cannot be built on this machine."""


class TargetError(ChaosError):
    """A process of the system under test did not start, stop or answer as it has to for the run to go on."""
