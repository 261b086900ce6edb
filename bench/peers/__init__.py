"""Comparison with other message services, in one run on one machine: three nodes each, the same rows, in turns.

Start with `run.py`. `rows.py` has the measurements, `service.py` the interface of a service; each service has a module
of its own. Nothing is installed outside `.peers/` and the tools' own caches.
"""
