"""Sends (codes 10, 310, 320): messages of clients, checked, collected into units of the log, answered once applied.

Start reading in `send`. Which sends repeat an earlier one is told in `dedup`.
"""
