"""What all SQL sinks share: the publish protocol, the ledger's statements, names, JSON text.

Dialects differ in how they quote, load and report errors; the protocol does not.
"""
