"""What the package's files, names and docstrings look like, in figures."""
