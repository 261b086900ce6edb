"""The end-to-end demonstration: real text through three nodes, a killed leader, every byte compared.

- `corpus.py`: the files that are shipped.
- `shipping.py`: sends them line by line; `rebuilding.py`: puts them together again.
- `failover.py`: kills the leader in mid-flight and brings it back.
- `traffic.py`: runs all of this at once; `bars.py`: shows it; `report.py`: judges it.

Only `dledger demo` uses this package.  Start at `run.py`.
"""
