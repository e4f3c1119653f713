"""Formats of records and their schemas."""
