"""A cluster of one machine: a directory with one sub-directory per process, and the processes themselves.

- `layout.py`: the nodes and their places (pure).
- `manifest.py` and `bootstrap.py`: make and complete the directory.
- `config_files.py`: writes the configuration of each process.
- `processes.py`: starts and stops single processes; `lifecycle.py`: whole clusters.
- `probes.py`: asks a node over HTTP.

Nothing here knows topics or messages.
"""
