"""Proof on real processes: a cluster behind proxies, faults from one seed, workloads, histories, checkers, a report.

Start reading at `run.py`, which is one run from the first process to the verdict.  `target.py` says what workloads and
faults may ask of a cluster, `faults/` holds every fault, `nemesis.py` decides when which one strikes.  Nothing here is
imported by a node: what a node suffers comes from outside, by signals, proxies, files and a preloaded library.  (Its
process for a class filter loads `class_filter.py`.)
"""
