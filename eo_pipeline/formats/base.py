"""Interface of a kind of schema: conversion of a text to columns, and comparison of two texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

from eo_pipeline.formats.schema_diff import Shape


class SchemaKind(ABC):
    """A kind of schema. Texts are self-contained, as the ledger holds them."""

    @abstractmethod
    def fault_of(self, text: str) -> str | None:
        """Return the reason why the fields of ``text`` cannot become columns; None if they can."""

    @abstractmethod
    def field_names(self, text: str) -> list[str]:
        """Return the names of the columns, in order."""

    @abstractmethod
    def left_out(self, writer: str, reader: str) -> list[str]:
        """Return the paths of the fields of ``writer`` that ``reader`` does not read. ``reader``
        has passed :meth:`fault_of`.
        """

    @abstractmethod
    def shape_of(self, text: str) -> Shape:
        """Return the columns in the form that all kinds share."""

    @abstractmethod
    def evolve_except(self, before: str, now: str, unchanged: Collection[str]) -> str:
        """Return the schema ``now`` with the columns ``unchanged`` as they are in ``before``, or
        without them if ``before`` lacks them.

        Raises:
            ValueError: impossible; the text names the conflict.
        """

    @abstractmethod
    def self_contained(self, text: str, references: Mapping[str, str]) -> str:
        """Return a registry's ``text`` with all ``references``, by name, written out."""

    def as_record(self, text: str) -> str:
        """Return ``text``, or a record with the one field ``key`` for a schema without fields."""
        return text

    def is_plain(self, text: str) -> bool:
        """Return whether :meth:`as_record` made the record."""
        del text  # every schema has fields
        return False
