"""The commands of `dledger`, one module per family.

A command reads its options, calls what does the work (`cluster/`, `demo/`, `dledger_client`), and prints the result
through `output.emit`.  Start at `options.py` for what commands share.
"""
