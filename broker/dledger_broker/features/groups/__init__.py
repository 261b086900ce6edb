"""Consumer groups: their settings, what users ask about these, and the topics that stand for groups."""
