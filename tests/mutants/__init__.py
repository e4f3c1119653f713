"""Mutants: one line of the engine changed so that one rule of the promise is broken, and the tests
of the first tier that must notice it.

``python -m tests.mutants`` (``make mutants``) applies each to a copy of the package and runs its
tests there. So nobody can thin out the first tier and lose a rule with it: the mutant that broke it
would survive. :mod:`tests.mutants.test_mutants` holds that every mutant still fits the code.

What runs inside the shared servers is not mutated: the jar (``jvm/``), and functions that Spark's
Python workers call, which may have been imported before the mutant was made.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """``text``, which is in ``file`` exactly once, becomes ``replacement``; that breaks ``rule``.

    ``tests`` are files, or node ids of pytest, which hold tests of the first tier that fail then.
    ``only_slow`` is the reason why none of that tier can: ``tests`` then name those of the second.
    """

    name: str
    rule: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]
    only_slow: str = ""

    def applied(self, source: str) -> str:
        """Return ``source``, the text of :attr:`file`, with the rule broken.

        Raises:
            ValueError: the text is not in it exactly once.
        """
        if (count := source.count(self.text)) != 1:
            raise ValueError(
                f"{self.name}: {self.file} has the text of this mutant {count} times, not once: "
                "the code moved. Correct the mutant in tests/mutants, so that it breaks the same "
                f"rule: {self.rule}"
            )
        return source.replace(self.text, self.replacement)
