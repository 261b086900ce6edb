"""Kernel of the broker: what every feature stands on, and knows nothing of any of them."""
