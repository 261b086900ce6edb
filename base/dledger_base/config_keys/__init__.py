"""Keys of configuration files: each is declared once.

A component declares its keys as fields of a dataclass (`declared.py`). The declaration determines reading, errors and
RocketMQ's names (`reading.py`). It also determines the origin of each value (`origins.py`), and the tables of the
documentation (`page.py`). `properties.py` reads files in the form of RocketMQ's. Nothing here knows a key of any
component.
"""
