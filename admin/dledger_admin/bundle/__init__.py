"""Debug bundle: one file with what somebody needs who looks for a fault in a cluster from afar, and no secret.

`archive.py` writes the file. `cluster.py` asks name servers and nodes, `local.py` reads the directory of a cluster of
this machine. `secrets.py` finds the secrets that must not get in. If something cannot be got, the bundle says so, and
why.
"""
