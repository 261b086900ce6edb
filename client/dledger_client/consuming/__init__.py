"""Parts of the consumers: queues taken over, pulls, messages handed out, their settlement, and offsets.

The classes of the application (`consumer`, `orderly`, `pull`, `simple`) stand above. Start with `assignments`, which
has one `fetcher` for each queue. `offers` hands messages out; `settlements` says what follows once they are finished.
"""
