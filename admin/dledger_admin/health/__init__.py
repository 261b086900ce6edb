"""Health of a cluster on any number of hosts.

`survey.py` asks name servers and nodes, `judge.py`, `groups.py` and `nodes.py` (pure) say what is wrong with what they
told, `text.py` shows it. The vocabulary is in `reports.py`. Nothing here knows of clusters in a local directory.
"""
