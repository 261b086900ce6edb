"""A cluster of one machine: a directory with one sub-directory per process, and the processes themselves.

`layout.py` says which nodes there are and where (pure), `manifest.py` and `bootstrap.py` make and complete the
directory, `config_files.py` writes what each process reads, `processes.py` starts and stops single processes,
`lifecycle.py` whole clusters, `probes.py` asks a node over HTTP.  Nothing here knows topics or messages.
"""
