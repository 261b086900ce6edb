"""Parts of the producers: encoding, order, back-pressure, attempts, and traces.

`producer` and `transactions` stand above. Start with `deliveries`, through which each request goes; `sender` makes its
attempts, and `wire` writes it.
"""
