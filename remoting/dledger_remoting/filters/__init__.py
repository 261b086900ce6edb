"""Filters of subscriptions: which messages a consumer group wants of a topic."""
