"""A pipeline's history: versions, offsets, live branch. Pure values, no I/O."""
