"""Range reads: the log itself, handed out entry by entry to readers that do not go through queues.

`requests.py` has their request codes, `pace.py` how much is read while others send.
"""
