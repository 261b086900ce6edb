"""The client port: connections, their limits, and requests as objects.

`connection.py` turns bytes into requests and collects answers into one write, `listener.py` owns the port and all
connections, `request.py` says what a request is to the rest of the broker. Nothing here knows what a request means.
Start reading at `request.py`.
"""
