"""Simulators of whole groups on faulty disks, networks, clocks and threads. One seed decides everything.

`log` simulates the replicated log alone, `brokers` brokers on that log, and `spark` the pipeline on a made-up cluster.
`docs/proof/simulator.md` says how to run them.
"""
