"""Puts a known bug into this interpreter, if it runs a node and its environment names one; see the package above."""

from __future__ import annotations

import os
import sys

if {"dledger_broker", "dledger_chaos.subjects.register_node"} & {
    *sys.orig_argv
} and "DLEDGER_CHAOS_MUTANT" in os.environ:
    from dledger_broker.sim.mutants import apply

    apply(os.environ["DLEDGER_CHAOS_MUTANT"])
