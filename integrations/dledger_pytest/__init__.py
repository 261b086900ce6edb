"""pytest plugin: clusters, topics and clients as fixtures."""
