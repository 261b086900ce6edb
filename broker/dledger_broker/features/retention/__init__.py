"""Retention: the part of the log that goes, and the leader that has it go on all replicas.

`policy.py` chooses, `trimming.py` does it, `job.py` looks every ten seconds.
"""
