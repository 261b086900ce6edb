"""Simulation of a whole group in a single process, from one seed.

The real replica runs on simulated disks, network, clocks and threads:

- `scheduler` is the virtual time, and `environment` a node's view of it.
- `network` and `disk` are the parts that can fail.
- `threads` decides which thread runs.
- `group` has the nodes, and `invariants` checks what must always hold for them.
- `faults` are the faults, and `nemesis` decides when each is injected.
- `workload` has the clients.
- `run` takes a seed from the start to the verdict.
- `mutants` are the known bugs that prove the judges.

Nothing here reads a real clock, and all randomness comes from the seed. A single thread runs at a time.
"""
