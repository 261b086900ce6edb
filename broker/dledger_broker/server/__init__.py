"""The client port: connections and their limits.

`connection.py` turns bytes into requests and collects answers into one write, `listener.py` owns the port and all
connections. Nothing here knows what a request means; `kernel/requests.py` says what one is to the rest of the broker.
"""
