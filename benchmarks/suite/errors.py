"""What stops one measurement, and never the others."""

from __future__ import annotations


class PeerMissingError(Exception):
    """The peer could not be installed here; the text is the reason, for the page."""


class MeasurementError(Exception):
    """A run failed, took too long, or its output was not what it should be."""
