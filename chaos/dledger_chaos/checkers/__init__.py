"""Judges: each holds one promise of `docs/promises.md` against what a run has recorded.

A checker is a pure function of a run's directory. `base.py` says what it is given and what it answers, `registry.py`
lists all of them, and `judge.py` lets them judge a run.
"""
