"""Every mutant still fits the code, and the tests that must notice it are there."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

import pytest

from tests.mutants import ROOT, Mutant
from tests.mutants.all import MUTANTS

#: Tests that classes of the suite inherit.
_CONTRACTS = ROOT / "eo_pipeline" / "testing"


@cache
def text_of(path: str) -> str:
    return (ROOT / path).read_text()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_a_mutant_is_one_change_of_the_code_as_it_is(mutant: Mutant) -> None:
    changed = mutant.applied(text_of(mutant.file))
    assert changed != text_of(mutant.file)
    compile(changed, mutant.file, "exec")
    assert mutant.rule.endswith(".")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_the_tests_that_must_notice_it_are_there(mutant: Mutant) -> None:
    contracts = "".join(path.read_text() for path in sorted(_CONTRACTS.glob("*.py")))
    assert mutant.tests
    for test in mutant.tests:
        file, *names = test.split("::")
        assert (ROOT / file).is_file(), f"{mutant.name}: there is no {file}"
        text = text_of(file) + contracts
        for name in names:
            plain = name.partition("[")[0]
            assert re.search(rf"^\s*(?:def|class) {plain}\b", text, re.M), f"{mutant.name}: {test}"


def test_no_two_mutants_have_one_name() -> None:
    assert [name for name, n in Counter(each.name for each in MUTANTS).items() if n > 1] == []
