"""Keys of configuration files: each declared once, and what follows from that.

A component declares its keys as fields of a dataclass (`declared.py`). Reading a file, errors and RocketMQ's names
follow from the declaration (`reading.py`), as do where each value comes from (`origins.py`) and the tables of the
documentation (`page.py`). `properties.py` reads files in the form of RocketMQ's. Nothing here knows a key of any
component.
"""
