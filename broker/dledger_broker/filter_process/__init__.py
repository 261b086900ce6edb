"""The process in which a class filter runs: code of the node's owner, which may hang, grow or die without harm to it.

`__main__.py` is that process, `frames.py` what it and the node say to each other, `messages.py` what a filter is shown,
`targets.py` how one is named. The node's side is `features/class_filters`. Nothing here imports the broker: the process
has its own memory limit, and code that is loaded counts.
"""

from dledger_broker.filter_process.messages import FilteredMessage

__all__ = ["FilteredMessage"]
