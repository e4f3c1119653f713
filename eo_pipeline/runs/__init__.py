"""The numbered life of a checkpoint, and every operation that makes a ledger version."""
