"""Frontend of the broker: from clients and other nodes to the handlers of requests, and back."""
