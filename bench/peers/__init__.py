"""Other message services beside ours, in one run on one machine: three nodes each, the same rows, in turns.

Start with `run.py`. `rows.py` says what is measured, `service.py` what a service has to offer; each service has a
module of its own. Nothing is installed outside `.peers/` and the tools' own caches.
"""
