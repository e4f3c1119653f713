"""Rewind, replay, fork, accepted losses, repair, maintenance, status."""
