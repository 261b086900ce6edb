"""Settings that hold for every test."""

import os

from hypothesis import settings

# Repeatable everywhere; HYPOTHESIS_PROFILE=search looks for new counterexamples.
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("search", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
