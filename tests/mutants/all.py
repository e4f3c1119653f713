"""All mutants."""

from __future__ import annotations

from tests.mutants import around, committing, going_back, reading, stores

MUTANTS = (
    *committing.MUTANTS,
    *reading.MUTANTS,
    *going_back.MUTANTS,
    *stores.MUTANTS,
    *around.MUTANTS,
)
