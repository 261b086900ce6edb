"""Frontend of the broker: carries requests from clients and other nodes to their handlers, and answers back.

- `connection.py`: turns bytes into requests and collects answers into one write.
- `listener.py`: owns the client port and all connections. Neither of the two knows what a request means.
- `dispatch.py`: hands requests to the handlers of their codes.
- `forwarding.py`: forwards to the leader the requests that need it.
- `registration.py`: keeps name servers informed.
- `http.py`: serves health, status and the metrics of `exporter.py`.

Start with `dispatch.py`.
"""
