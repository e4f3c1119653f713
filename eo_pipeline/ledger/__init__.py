"""What a pipeline's history is: versions, offsets, live branch. Pure values, no I/O."""
