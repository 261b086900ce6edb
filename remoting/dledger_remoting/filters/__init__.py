"""Filters of subscriptions: which messages a consumer group wants of a topic.

A filter has two stages. The first looks at a message's unit in the consume queue, which holds the code of its tag
(`tags.py`); the second at the properties in its record, for expressions in SQL92: `sql92.py` is what others use,
`tokens.py` and `parsing.py` make a tree (`syntax.py`) of the text, `closures.py` functions of the tree, `values.py`
compares as Java does. `classes.py` has the names of filters that are code of whoever filters. Nothing here evaluates
text as code.
"""
