"""Harnesses for tests of the log and of what is built on it.

`engine_group` runs consensus engines with the test as their network, disk and clock: every message, save and sync
happens when the test says so; `cores` are such groups of the native engine.  `engine_suite` has what every engine
promises, as tests that its author runs.  `disk` is a disk in memory that fails as it is told.  For whole replicas on
faulty disks and networks see `dledger_sim.log`.
"""
