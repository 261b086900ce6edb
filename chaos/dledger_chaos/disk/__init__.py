"""Disks that forget, fail and dawdle, and clocks that jump: a preloaded library, and what the rig does with it.

`shim/` is loaded into every node; the head comment of `shim.c` says what it keeps and where.  `build` compiles it,
`control` gives a running node's disk and clock their faults, `undo` takes back what a killed node had not synced.
"""
