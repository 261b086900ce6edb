"""Filters of subscriptions: they select the messages of a topic that a consumer group wants.

A filter has two stages. The first checks a message's unit in the consume queue, which holds the code of its tag
(`tags.py`). The second checks the properties in the message's record, for SQL92 expressions.

`sql92.py` is the entry point. `tokens.py` and `parsing.py` turn the text into a tree (`syntax.py`), `closures.py` turns
the tree into functions, and `values.py` compares as Java does. `classes.py` names filters whose code the filtering side
has. Nothing here evaluates text as code.
"""
