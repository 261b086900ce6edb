"""Deduplication of sends: a repeated send is stored once. Holds the memory of earlier sends and the search in it.

Start reading in `idempotent`. The replicated table is in `remembered`.
"""
