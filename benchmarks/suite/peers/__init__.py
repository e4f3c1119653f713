"""Us and the others: a file each."""
