"""Campaigns: many runs, each with its own faults and workloads, and the sums of their results.

`swarm` draws faults, workloads and pace from a seed. `driver` runs one seed after the other. `totals` keeps the figures
of all runs in a file, and `figures` makes a table of them.
"""
