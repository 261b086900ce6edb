"""The end-to-end demonstration: real text through three nodes, a killed leader, every byte compared.

`corpus.py` says what is shipped, `shipping.py` sends it line by line, `rebuilding.py` puts it together again,
`failover.py` kills the leader in mid-flight and brings it back, `traffic.py` lets all of it happen at once, `bars.py`
shows it, `report.py` judges.  Nothing here is used by anything but `dledger demo`.  Start at `run.py`.
"""
