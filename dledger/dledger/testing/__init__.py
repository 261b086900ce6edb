"""Harnesses for tests of the log and of components built on it.

`disk` is a disk in memory with injected failures, and `ports` finds free ports. The simulator (`dledger_sim`) has whole
replicas on faulty disks and networks, and the promises of every engine as tests that an engine's author runs.
"""
