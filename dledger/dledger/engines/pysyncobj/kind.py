"""Kind of engine in which PySyncObj decides."""

from __future__ import annotations

from typing import Final

from dledger.consensus.engine import EngineKind
from dledger.core.messages import CODEC
from dledger.engines.pysyncobj.engine import PySyncObjEngine
from dledger.types import PYSYNCOBJ_ENGINE

PYSYNCOBJ: Final = EngineKind(PYSYNCOBJ_ENGINE, PySyncObjEngine, CODEC)
