"""Work that is due a few times a second and never urgent: healing, scrubbing, members, warnings. Start at `upkeep`.

No write enters here.
"""
