"""Sinks: rows and ledger entry become visible together. One protocol, one folder a store."""
