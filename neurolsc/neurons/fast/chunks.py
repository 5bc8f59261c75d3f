"""How much is done at once: few enough for a cache, many enough that calls cost little."""

ROWS = 1024
"""rows (step, sample) whose products are made at once"""
SLOPES = 2**17
"""entries whose surrogate's derivatives are made at once"""
ENTRIES = 2**17
"""entries of an input that are looked through at once"""


def block_length(batch: int) -> int:
    """The number of steps of so many samples whose rows are taken at once."""
    return max(1, ROWS // batch)
