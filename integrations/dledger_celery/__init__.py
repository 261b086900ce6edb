"""Kombu transport, by which Celery uses a cluster as its broker."""
