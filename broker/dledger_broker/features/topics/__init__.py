"""Topics: what clients and users ask about them, and those that a broker has from the start.

Their table is the kernel's.
"""
