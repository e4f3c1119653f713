"""``python -m tests.house [MODULE]``: the figures of the package's files, names and docstrings.

With a module or room (``eo_pipeline.batch``): its names and docstrings that break a rule.
With ``--publish``: the files that the publish of five rows enters, and its calls between them.
"""

from __future__ import annotations

import statistics
import sys

from tests.house.figures import (
    empty_names,
    lone_modules,
    modules,
    offenders,
    questions,
    reach_into_jvm,
    use_native,
)
from tests.house.publishing import traces


def main() -> None:
    """Print the figures, or the lines of one room."""
    if sys.argv[1:] == ["--publish"]:
        for sink, trace in traces().items():
            sys.stdout.write(f"{sink}: {trace}\n")
            for (caller, callee), calls in trace.jumps.most_common():
                sys.stdout.write(f"{calls:5} {caller} -> {callee}\n")
        return
    package = modules()
    for prefix in sys.argv[1:]:
        sys.stdout.writelines(f"{line}\n" for line in offenders(package, prefix))
    if sys.argv[1:]:
        return
    lines = [module.lines for module in package.values()]
    names, docstrings = empty_names(package), questions(package)
    for line in (
        f"{len(lines)} files, {sum(lines):,} lines; median {statistics.median(lines):.0f}",
        f"small modules with one importer in their folder: {', '.join(lone_modules(package))}",
        f"bound names that name nothing: {names.part} of {names.whole}, {names.percent:.2f} %",
        "docstrings that begin with a question word: "
        f"{docstrings.part} of {docstrings.whole}, {docstrings.percent:.1f} %",
        f"files that reach into the JVM: {', '.join(reach_into_jvm(package))}",
        f"files that use the package's Java: {', '.join(use_native(package))}",
    ):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
