"""The targets that can be named on the command line."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from .errors import ChaosError
from .local import LocalTarget
from .target import Target

TARGETS: Final = {"local": "three nodes of this project, started by `dledger up`"}


class ManagedTarget(Target, Protocol):
    """A target that runs while it is used as a context."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def make_target(name: str, directory: Path, *, seed: int, mutant: str | None) -> ManagedTarget:
    """Return a target that keeps everything in `directory`; raises `ChaosError` for a name that is none."""
    if name not in TARGETS:
        raise ChaosError(f"there is no target {name!r}, only {', '.join(TARGETS)}")
    del mutant
    return LocalTarget(directory, seed=seed)
