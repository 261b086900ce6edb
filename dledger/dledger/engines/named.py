"""Engines by the names that configuration, identities and command lines give them, and the native engine.

The native engine is the project's own Raft, `dledger.core`."""

from __future__ import annotations

import re
from typing import Final

from dledger.consensus.engine import EngineKind, EngineStart
from dledger.core.log_table import LogTable
from dledger.core.messages import CODEC
from dledger.core.raft import Raft
from dledger.errors import ConfigError
from dledger.types import ENGINES, NATIVE_ENGINE, PYSYNCOBJ_ENGINE
from dledger_base.extras import install_command, pysyncobj_version


def start_core(start: EngineStart) -> Raft:
    """Return a core that continues from the recovered state."""
    log = start.log
    table = LogTable(
        log.base_index,
        log.base_term,
        log.term_runs,
        log.last_index,
        log.membership,
        log.membership_index,
        log.memberships,
        log.unread,
    )
    return Raft(
        start.me,
        table,
        start.hard_state,
        durable_index=start.durable_index,
        commit_index=start.commit_index,
        settings=start.settings,
        random=start.random,
        now=start.now,
        may_vote=start.may_vote,
    )


NATIVE = EngineKind(NATIVE_ENGINE, start_core, CODEC)


PYSYNCOBJ_FROM: Final = (0, 3, 17)
PYSYNCOBJ_BELOW: Final = (0, 4)
"""Versions of PySyncObj that the engine is proven with: it replaces parts of the library by their names."""


def engine_named(name: str) -> EngineKind:
    """Return the kind of engine with a name.

    Raises `ConfigError` for an unknown name, or if the engine's package is missing or has another version.
    """
    if name == NATIVE_ENGINE:
        return NATIVE
    if name != PYSYNCOBJ_ENGINE:
        raise ConfigError(f"engine is {name!r}: use one of {', '.join(map(repr, ENGINES))}")
    try:
        from dledger.engines.pysyncobj import PYSYNCOBJ
    except ModuleNotFoundError as error:
        raise ConfigError(f"engine {name!r} needs {error.name}: {install_command(PYSYNCOBJ_ENGINE)}") from error
    _require_version(pysyncobj_version())
    return PYSYNCOBJ


def _require_version(version: str) -> None:
    release = re.match(r"\d+(?:\.\d+)*", version)
    numbers = tuple(map(int, release[0].split("."))) if release else ()
    if not PYSYNCOBJ_FROM <= numbers < PYSYNCOBJ_BELOW:
        low, high = (".".join(map(str, release_numbers)) for release_numbers in (PYSYNCOBJ_FROM, PYSYNCOBJ_BELOW))
        raise ConfigError(
            f"engine {PYSYNCOBJ_ENGINE!r} needs PySyncObj from {low} on and below {high}, {version} is installed: "
            f"{install_command(PYSYNCOBJ_ENGINE)}"
        )
