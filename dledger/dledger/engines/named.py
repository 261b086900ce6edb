"""Engines by the names that configuration, identities and command lines give them."""

from __future__ import annotations

from dledger.consensus.engine import EngineKind
from dledger.engines.native import NATIVE
from dledger.errors import ConfigError
from dledger.extras import install_command
from dledger.types import ENGINES, NATIVE_ENGINE, PYSYNCOBJ_ENGINE


def engine_named(name: str) -> EngineKind:
    """The kind of engine of a name.

    Raises `ConfigError` if there is none, or if what it is made of is not installed.
    """
    if name == NATIVE_ENGINE:
        return NATIVE
    if name != PYSYNCOBJ_ENGINE:
        raise ConfigError(f"engine is {name!r}: use one of {', '.join(map(repr, ENGINES))}")
    try:
        from dledger.engines.pysyncobj.kind import PYSYNCOBJ
    except ModuleNotFoundError as error:
        raise ConfigError(f"engine {name!r} needs {error.name}: {install_command(PYSYNCOBJ_ENGINE)}") from error
    return PYSYNCOBJ
