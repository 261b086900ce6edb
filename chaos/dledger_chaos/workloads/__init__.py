"""Workloads: clients that work while faults strike. `registry` lists them; each is a module with an `ENTRY`.

A workload only records its requests and the answers (`history`); `checkers` judge them afterwards. Start reading at
`base.py`; the simplest workload is `ordered.py`.
"""
