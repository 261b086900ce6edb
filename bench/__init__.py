"""Benchmarks: a C load generator on the real wire, and a runner that puts every figure beside the machine's own limits.

Start reading in `run.py` (the command) and `scenarios.py` (what is measured); `gen.c` makes the load. Nothing here is
installed, and nothing here knows the inside of a broker: clusters are started and stopped through the public command.
"""
