"""Checkers: each compares one promise of `docs/promises.md` with the records of a run.

A checker is a pure function of a run's directory. `base.py` defines its argument and its answer, `registry.py` lists
all checkers, and `judge.py` applies them to a run.
"""
