"""The `dledger` command: start and operate clusters, use topics and groups, inspect logs, run the demonstration.

`cli.py` holds the command tree and nothing else. `commands/` has one module per family. `cluster/` knows the files and
processes of a local cluster. `demo/` is the end-to-end demonstration.

Nothing here talks to a broker except through `dledger_client` and HTTP, and nothing here writes into a node's log.
Start reading at `cluster/layout.py`.
"""
