"""Messages between replicas: what comes in, what goes out, and what they must wait for."""
