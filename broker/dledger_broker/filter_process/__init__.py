"""The process in which a class filter runs. Its code belongs to the node's owner. It may hang, grow or die without harm
to the node.

`__main__.py` is the process. `frames.py` has the frames that it exchanges with the node. `messages.py` makes the
message that a filter sees. `targets.py` reads the name of a filter's code. The node's side is `features/class_filters`.
Nothing here imports the broker, because the process has its own memory limit, and loaded code counts towards it.
"""

from dledger_broker.filter_process.messages import FilteredMessage

__all__ = ["FilteredMessage"]
