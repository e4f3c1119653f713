"""Parts of all SQL sinks: the session and its steps, the ledger's table, connections, names.

A dialect says how it connects, quotes, loads and reports errors; the rest is here.
"""
