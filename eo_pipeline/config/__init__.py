"""Pipeline documents and settings."""
