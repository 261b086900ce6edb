"""Simulators of whole groups on faulty disks, networks, clocks and threads: one seed decides everything.

`log` simulates the replicated log alone, `brokers` brokers on it.  `docs/simulator.md` tells how to run them.
"""
