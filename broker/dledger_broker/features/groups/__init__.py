"""Consumer groups: their settings, and the topics that stand for them."""
