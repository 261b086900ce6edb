"""A whole group in one process, from one seed: the real replica on simulated disks, network, clocks and threads.

`scheduler` is time, `environment` a node's view of it, `network` and `disk` what can fail, `threads` who runs, `group`
the nodes and `invariants` what must always hold of them, `faults` what goes wrong and `nemesis` when, `workload` the
clients, `run` one seed from start to verdict, `mutants` the known bugs that prove it.  Nothing here reads a clock or
draws randomness from anywhere but the seed, and of all threads one runs at a time.
"""
