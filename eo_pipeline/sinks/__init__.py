"""How rows and ledger entry become visible together: one protocol, one folder a store."""
