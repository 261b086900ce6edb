"""Puts a known bug into this interpreter, if it runs a node and its environment names a bug.

`dledger_chaos.mutants` explains how it is loaded.
"""

from __future__ import annotations

import os
import sys

_REGISTER_NODE = "dledger_chaos.subjects.register_node"

if "DLEDGER_CHAOS_MUTANT" in os.environ:
    if _REGISTER_NODE in sys.orig_argv:
        from dledger_chaos.mutants.registers import apply

        apply(os.environ["DLEDGER_CHAOS_MUTANT"])
    elif "dledger_broker" in sys.orig_argv:
        from dledger_sim.brokers.mutants import apply

        apply(os.environ["DLEDGER_CHAOS_MUTANT"])
