"""Keys of a broker's configuration: each declared once, in a section with related keys.

A section is a dataclass whose fields are declared with `dledger_base.config_keys`. The sections of the log are in
`dledger.replication_keys`, the sections of every process in `dledger_base.logs`. `config.py` joins all sections. A
function that reads a special form of value is defined beside its key.
"""
