"""Faults of disks and clocks, by a library that is preloaded into every node: the disk shim.

`shim/` is the library; the head comment of `shim.c` describes its files. `build` compiles it. `control` sets the faults
of a running node's disk and clock. `undo` rolls back the unsynced writes of a killed node.
"""
