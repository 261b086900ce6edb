"""Keys of a broker's configuration: each declared once, in a section of the page about them.

A section is a dataclass whose fields are declared with `dledger.config_keys`; those of the log are declared there, in
`dledger.replication_keys`, and those of every process in `dledger.log_keys`. `config.py` joins them. What reads a value
of a special form stands with its key.
"""
