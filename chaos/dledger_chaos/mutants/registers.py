"""Known bugs in register nodes: the simulator's bugs, and a form of `answer-before-apply` for their state machine."""

from __future__ import annotations

import json
from typing import Final

from dledger.format import HEADER_BYTES
from dledger.replica.writing.leading import Leading
from dledger.replica.writing.proposer import SealedEntry
from dledger_chaos.subjects.registers import Result
from dledger_sim.brokers.mutants import MUTANTS
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE: Final = Catalogue("log")


def _answer_writes_when_proposed(self: Leading, entry: SealedEntry) -> None:
    _real_propose(self, entry)
    meta = entry.meta
    lines = bytes(entry.data[HEADER_BYTES : meta.size - meta.channel]).splitlines() if entry.contexts else []
    for line, context in zip(lines, entry.contexts, strict=False):
        resolve = getattr(context, "resolve", None)  # its class is in `__main__`, the module that was started
        if resolve is not None and json.loads(line)["op"] == "write":
            resolve(Result(ok=True))


_real_propose = Leading._propose  # noqa: SLF001 - what is patched is what is private

CATALOGUE.add(
    "answer-before-apply",
    MUTANTS["answer-before-apply"].breaks,
    (Leading, "_propose", _answer_writes_when_proposed),
)


def apply(name: str) -> None:
    """Put a bug into this process until it ends. Raises `KeyError` if the bug is unknown."""
    CATALOGUE.get(name, MUTANTS[name]).apply()
