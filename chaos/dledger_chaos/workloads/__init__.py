"""Workloads: clients at work while faults strike; one module each, with an entry in `registry`.

A workload only records what it asked and what it was told (`history`); whether that was right is for `checkers`.
Start reading at `base.py`; the simplest workload is `append.py`.
"""
