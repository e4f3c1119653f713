"""Figures of the source text: pure, by its syntax trees."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: Lines up to which a module is small.
SMALL = 150

#: Names that name nothing.
EMPTY_NAMES = frozenset({"found", "each", "told", "said", "made", "own", "asked", "known"})

#: How a docstring begins that says neither what a function does nor what a value is.
_QUESTION = re.compile(r"(?:What|Whether|How|Which|Who|Whom|Whose|Where|When|Why|The same)\b")

#: What is only there where Spark runs in this process.
_JVM = re.compile(
    r"\b(?:_jvm|_gateway|_jdf|_jsparkSession|sparkContext)\b|\bgateway\.jvm\b|\.rdd\b"
)

#: Use of the package's Java: the jar, its JSON reader, the fast path.
_NATIVE = re.compile(r"\bnative_jar\b|\bnative=|\bFastPath\b")


@dataclass(frozen=True)
class Module:
    """One file of the package; ``name`` is dotted."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def exports(self) -> list[ast.stmt]:
        """Imports of a package's stub, see ``eo_pipeline._lazy.exports``."""
        stub = self.path.with_suffix(".pyi")
        return ast.parse(stub.read_text()).body if stub.exists() else []

    @cached_property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


@dataclass(frozen=True)
class Share:
    """``part`` of ``whole``."""

    part: int
    whole: int

    @property
    def percent(self) -> float:
        return 100 * self.part / max(1, self.whole)


def modules(root: Path = ROOT) -> dict[str, Module]:
    """Every module of the package by its dotted name."""
    names = {}
    for path in sorted((root / "eo_pipeline").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        names[name] = Module(name, path)
    return names


def importers(package: Mapping[str, Module]) -> dict[str, set[str]]:
    """The modules that import a module, within functions and for type checkers too."""
    result = defaultdict(set)
    for module in package.values():
        for node in (*ast.walk(module.tree), *module.exports):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    imported = whole if whole in package else node.module
                    if imported in package and imported != module.name:
                        result[imported].add(module.name)
    return dict(result)


def lone_modules(package: Mapping[str, Module]) -> list[str]:
    """Small modules whose one importer stands in their own folder: they belong into it."""
    users = importers(package)
    return [
        name
        for name, module in package.items()
        if module.lines <= SMALL
        and not module.is_package
        and len(users.get(name, ())) == 1
        and package[next(iter(users[name]))].path.parent == module.path.parent
    ]


def bound_names(module: Module) -> Iterator[tuple[int, str]]:
    """Line and name of each assignment, loop variable and parameter."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def is_empty_name(name: str) -> bool:
    """Return whether the name is one of :data:`EMPTY_NAMES`."""
    return name.lstrip("_") in EMPTY_NAMES


def docstrings(module: Module) -> Iterator[tuple[int, str]]:
    """Line and docstring of the module and of each class and function, an empty text for none."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Module):
            yield 1, ast.get_docstring(node) or ""
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, ast.get_docstring(node) or ""


def is_question(docstring: str) -> bool:
    """Return whether it begins with a question word, or with "The same"."""
    return bool(_QUESTION.match(docstring))


def empty_names(package: Mapping[str, Module]) -> Share:
    """Share of the bound names that are one of :data:`EMPTY_NAMES`."""
    names = [name for module in package.values() for _, name in bound_names(module)]
    return Share(sum(map(is_empty_name, names)), len(names))


def questions(package: Mapping[str, Module]) -> Share:
    """Share of the docstrings that begin with a question word."""
    texts = [text for module in package.values() for _, text in docstrings(module) if text]
    return Share(sum(map(is_question, texts)), len(texts))


def offenders(package: Mapping[str, Module], prefix: str) -> Iterator[str]:
    """Lines ``path:line: name or docstring`` of the modules below ``prefix``."""
    for name, module in package.items():
        if name.startswith(prefix):
            path = module.path.relative_to(ROOT)
            for line, bound in bound_names(module):
                if is_empty_name(bound):
                    yield f"{path}:{line}: {bound}"
            for line, text in docstrings(module):
                if is_question(text):
                    yield f"{path}:{line}: {text.splitlines()[0]}"


def reach_into_jvm(package: Mapping[str, Module]) -> list[str]:
    """Modules whose code (no comment or docstring) names what only a JVM in this process has."""
    return [name for name, module in package.items() if _JVM.search(ast.unparse(_bare(module)))]


def use_native(package: Mapping[str, Module]) -> list[str]:
    """Modules of Spark's work that use the package's Java or the fast path."""
    rooms = ("eo_pipeline.batch", "eo_pipeline.runs", "eo_pipeline.spark", "eo_pipeline.sinks")
    return [
        name
        for name, module in package.items()
        if name.startswith(rooms) and _NATIVE.search(f"{name} {ast.unparse(_bare(module))}")
    ]


def _bare(module: Module) -> ast.Module:
    """Its tree without docstrings."""
    tree = ast.parse(module.text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            body[0] = ast.Pass()
    return tree


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
