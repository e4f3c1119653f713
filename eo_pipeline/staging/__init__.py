"""Staged rows, invisible until they are committed, and the manifest that promises the commit."""
