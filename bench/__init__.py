"""Benchmarks: a C load generator on the real wire, and a runner that compares figures with the machine's own limits.

Start reading in `run.py` (the command) and `scenarios.py` (the measurements); `gen.c` makes the load. Nothing here is
installed, and nothing here knows the inside of a broker: the public command starts and stops clusters.
"""
