"""Harnesses for tests of the log and of what is built on it.

`cores` runs pure consensus cores with the test as their network, disk and clock: every message, save and sync happens
when the test says so.  `disk` is a disk in memory that fails as it is told.  For whole replicas on faulty disks and
networks see `dledger_sim.log`.
"""
