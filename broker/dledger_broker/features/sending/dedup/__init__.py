"""Sends that are stored once however often they are repeated: what is remembered of them, and what finds a repetition.

Start reading in `idempotent`; the replicated table is in `remembered`.
"""
