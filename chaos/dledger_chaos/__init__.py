"""Proof on real processes: a cluster behind proxies, faults from one seed, workloads, histories, checkers, a report.

Start reading at `run.py`. `chaos/README.md` lists all modules.

Faults reach a node from outside only: by signals, proxies, files and a preloaded library. A node imports nothing of
this package. One exception is its process for class filters, which loads `class_filter.py`.
"""
