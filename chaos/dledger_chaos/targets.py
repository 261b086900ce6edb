"""The targets that can be named on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from .errors import ChaosError
from .local import CAPABILITIES, CONFIG, LocalTarget
from .mutants import mutant_environment
from .rocketmq import ROCKETMQ_CAPABILITIES, RocketmqTarget
from .subject_target import PYSYNCOBJ_CAPABILITIES, REGISTER_CAPABILITIES, SubjectTarget
from .target import Target


@dataclass(frozen=True, slots=True)
class TargetEntry:
    """A line of the registry; see `Target.capabilities`."""

    summary: str
    capabilities: frozenset[str]


TARGETS: Final = {
    "local": TargetEntry("three nodes of this project, started by `dledger up`", CAPABILITIES),
    "two-groups": TargetEntry("two broker groups of three such nodes, with two name servers", CAPABILITIES),
    "proxies": TargetEntry("three such nodes, and two proxies for RocketMQ 5's clients", CAPABILITIES | {"proxies"}),
    "register": TargetEntry("registers and logs on this project's replicated log", REGISTER_CAPABILITIES),
    "pysyncobj": TargetEntry("the same on stock PySyncObj", PYSYNCOBJ_CAPABILITIES),
    "rocketmq": TargetEntry("a DLedger group of a real RocketMQ", ROCKETMQ_CAPABILITIES),
}


CLUSTERS: Final = ("local", "two-groups", "proxies")
"""Targets whose nodes are our brokers."""

MUTABLE: Final = ("local", "two-groups", "proxies", "register")
"""Targets whose nodes can have a known bug."""


class ManagedTarget(Target, Protocol):
    """A target that runs while it is used as a context."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def make_target(
    name: str,
    directory: Path,
    *,
    seed: int,
    config: str = "",
    engine: str | None = None,
    mutant: str | None = None,
) -> ManagedTarget:
    """Return a target that keeps everything in `directory`; raises `ChaosError` for an unknown name.

    `config` is added to the configuration of all nodes. `mutant` names a known bug for all nodes. `engine` names the
    engine of our brokers; the default is that of `dledger up`.
    """
    if name not in TARGETS:
        raise ChaosError(f"there is no target {name!r}, only {', '.join(TARGETS)}")
    if mutant is not None and name not in MUTABLE:
        raise ChaosError(f"target {name} cannot run mutants, {', '.join(MUTABLE)} can")
    if engine is not None and name not in CLUSTERS:
        raise ChaosError(f"nodes of target {name} have no engine to choose, those of {', '.join(CLUSTERS)} have")
    environment = mutant_environment(mutant) if mutant is not None else {}
    if name == "rocketmq":
        return RocketmqTarget(directory, seed=seed)
    if name == "pysyncobj":
        return SubjectTarget("pysyncobj_node", directory, seed=seed)
    if name == "register":
        return SubjectTarget("register_node", directory, seed=seed, environment=environment)
    of_each = 2 if name == "two-groups" else 1
    return LocalTarget(
        directory,
        groups=of_each,
        name_servers=of_each,
        seed=seed,
        config=CONFIG + config,
        engine=engine,
        with_proxies=name == "proxies",
        environment=environment,
    )
