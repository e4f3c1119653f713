"""Reading one batch: decode, validate, count and stage its rows."""
