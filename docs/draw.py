"""Draws the pictures of docs/architecture.md from the import contract and the files themselves, so
that they cannot tell otherwise; and that of docs/tables.md.

    python docs/draw.py            writes the pictures
    python docs/draw.py --check    fails if they are not those that would be written
"""

from __future__ import annotations

import ast
import sys
import textwrap
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
CONTRACT = "rooms, one way"

WIDTH, MARGIN, GAP = 980, 20, 14
FLOOR, LINE = 92, 15
FLOOR_NAME = 28
_PALETTE = {"stroke": "#3b5b7a", "fill": "#f3f7fb", "text": "#1d2b38", "quiet": "#5f7183"}

#: Steps of a checkpoint's life, by the room in which they happen.
STEPS = {
    "eo_pipeline.runs": "1 recover · 8 report",
    "eo_pipeline.kafka": "2 plan",
    "eo_pipeline.batch": "3 read · 4 transform · 5 stage",
    "eo_pipeline.staging": "6 pre_commit",
    "eo_pipeline.sinks": "7 commit",
}


def floors() -> list[list[str]]:
    """Modules from the top floor to the ground, as the layers contract lists them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(c["layers"] for c in contracts["contracts"] if c["name"].startswith(CONTRACT))
    return [[name.strip(" ()") for name in layer.split("|")] for layer in layers]


def says(module: str) -> str:
    """The first sentence of a room's docstring."""
    path = ROOT / module.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(source.read_text())) or ""
    return (
        text.split("\n\n")[0].replace("\n", " ").replace("`", "").replace(":mod:", "").rstrip(":")
    )


def holds(module: str) -> str:
    """What ``ls`` shows of a room."""
    path = ROOT / module.replace(".", "/")
    if not path.is_dir():
        return ""
    names = sorted(each.stem for each in path.glob("*.py") if not each.stem.startswith("_"))
    folders = sorted(each.parent.name for each in path.glob("*/__init__.py"))
    return " ".join([*names, *(f"{name}/" for name in folders)])


def rooms() -> str:
    """The house as SVG: a room may use what stands on a floor below it, and nothing above."""
    rows = floors()
    height = 2 * MARGIN + len(rows) * (FLOOR + GAP) + 10
    body: list[str] = []
    for number, modules in enumerate(rows):
        body += _floor(modules, MARGIN + number * (FLOOR + GAP))
    return _svg([*body, _imports_arrow(height)], height)


#: One record's way: what happens, and the file in which it does.
WAY = (
    ("Kafka", "a topic", ""),
    ("2 plan", "which offsets are new", "kafka/planner.py"),
    ("3 read", "just those, by Spark", "batch/read.py"),
    ("3 decode", "a row, or a bad record", "batch/decode.py"),
    ("4 transform", "what you wrote", "batch/stage.py"),
    ("5 stage", "where no reader looks", "batch/stage.py"),
    ("6 pre_commit", "a promise, on disk", "staging/attempt.py"),
    ("7 commit", "row and ledger entry", "sinks/session.py"),
    ("the table", "the record, once", ""),
    ("8 report", "told to whoever asked", "runs/report.py"),
)
PER_ROW, STOP_HEIGHT = 5, 74


def way() -> str:
    """One record's way through the rooms as SVG, left to right, row after row."""
    width = (WIDTH - 2 * MARGIN - (PER_ROW - 1) * 2 * GAP) / PER_ROW
    body: list[str] = []
    for number, (name, what, file) in enumerate(WAY):
        row, column = divmod(number, PER_ROW)
        left, top = MARGIN + column * (width + 2 * GAP), MARGIN + row * (STOP_HEIGHT + 3 * GAP)
        body += [
            _box(left, top, width, STOP_HEIGHT),
            _text(left + 12, top + 22, name, bold=True),
            _text(left + 12, top + 41, what),
            _text(left + 12, top + 60, file, quiet=True),
        ]
        if number + 1 < len(WAY):
            body.append(_on(left, top, width, last=column == PER_ROW - 1))
    rows = -(-len(WAY) // PER_ROW)
    return _svg(body, round(2 * MARGIN + rows * STOP_HEIGHT + (rows - 1) * 3 * GAP))


#: Topics, what one read does with them, and the tables of one transaction.
TOPICS = (("orders", "records for two tables"), ("customers", "records for one"))
READ = ("one read", ("each range once", "conditions of all tables", "rows of each"))
FILLED = (
    ("orders", "rows"),
    ("order_lines", "rows"),
    ("customers", "upserted by a key"),
    ("eo_ledger", "one entry: offsets, counts of each"),
)
SIDE, SMALL, FRAME = 210, 52, 16


def tables() -> str:
    """One read that fills several tables as SVG, from left to right."""
    step = SMALL + GAP
    height = MARGIN * 2 + FRAME * 2 + len(FILLED) * step + 10
    middle, right = (WIDTH - SIDE) / 2, WIDTH - MARGIN - FRAME - 280
    centre = height / 2
    stroke = _PALETTE["stroke"]
    body = [
        f'<rect x="{right - FRAME:.0f}" y="{MARGIN}" width="{280 + 2 * FRAME}" '
        f'height="{height - 2 * MARGIN}" rx="8" fill="none" stroke="{stroke}" '
        'stroke-dasharray="5 4"/>',
        _text(right + 140, MARGIN + 20, "one transaction", anchor="middle", quiet=True),
        _box(middle, centre - 48, SIDE, 96),
        _text(middle + 12, centre - 24, READ[0], bold=True),
        *(_text(middle + 12, centre - 3 + 18 * n, text) for n, text in enumerate(READ[1])),
    ]
    for number, (name, what) in enumerate(TOPICS):
        top = centre - step + number * step + GAP / 2
        body += _entry(MARGIN, top, SIDE, f"topic {name}", what)
        body.append(_line(MARGIN + SIDE, top + SMALL / 2, middle, centre))
    for number, (name, what) in enumerate(FILLED):
        top = MARGIN + FRAME + 16 + number * step
        body += _entry(right, top, 280, name, what)
        body.append(_line(middle + SIDE, centre, right, top + SMALL / 2))
    return _svg(body, round(height))


def _entry(left: float, top: float, width: float, name: str, what: str) -> list[str]:
    return [
        _box(left, top, width, SMALL),
        _text(left + 12, top + 22, name, bold=True),
        _text(left + 12, top + 41, what, quiet=True),
    ]


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    bend = (x + to_x) / 2
    path = f"M{x:.0f} {y:.0f} C{bend:.0f} {y:.0f} {bend:.0f} {to_y:.0f} {to_x - 8:.0f} {to_y:.0f}"
    stroke = _PALETTE["stroke"]
    return f'<path d="{path} m0 -4 l8 4 l-8 4" fill="none" stroke="{stroke}"/>'


def _on(left: float, top: float, width: float, *, last: bool) -> str:
    """The arrow to the next stop, which may begin a new row."""
    if not last:
        path = f"M{left + width:.0f} {top + STOP_HEIGHT / 2:.0f} h{2 * GAP - 8} m0 -4 l8 4 l-8 4 z"
    else:
        x, y = left + width / 2, top + STOP_HEIGHT
        first = MARGIN + width / 2
        half = 1.5 * GAP
        path = f"M{x:.0f} {y:.0f} v{half:.0f} H{first:.0f} v{half - 8:.0f} m-4 0 l4 8 l4 -8 z"
    stroke = _PALETTE["stroke"]
    return f'<path d="{path}" fill="none" stroke="{stroke}"/>'


def _svg(body: list[str], height: int) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'font-family="system-ui, sans-serif" font-size="13">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            *body,
            "</svg>",
            "",
        ]
    )


def _box(left: float, top: float, width: float, height: float) -> str:
    return (
        f'<rect x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{height}" rx="6" '
        f'fill="{_PALETTE["fill"]}" stroke="{_PALETTE["stroke"]}"/>'
    )


def _floor(modules: list[str], top: int) -> list[str]:
    inner = WIDTH - 2 * MARGIN - FLOOR_NAME
    width = (inner - GAP * (len(modules) - 1)) / len(modules)
    lines: list[str] = []
    for number, module in enumerate(modules):
        left = MARGIN + FLOOR_NAME + number * (width + GAP)
        lines += _room(module, left, top, width)
    return lines


def _room(module: str, left: float, top: int, width: float) -> list[str]:
    name = module.removeprefix("eo_pipeline.")
    folder = (ROOT / module.replace(".", "/")).is_dir()
    letters = int((width - 24) / 7)
    texts = textwrap.wrap(says(module), letters)[:2]
    lines = [
        _box(left, top, width, FLOOR),
        _text(left + 12, top + 22, f"{name}/" if folder else f"{name}.py", bold=True),
    ]
    lines += [_text(left + 12, top + 40 + LINE * n, text) for n, text in enumerate(texts)]
    files = textwrap.wrap(holds(module), letters)[: 4 - len(texts)]
    below = top + 40 + LINE * len(texts) + 3
    lines += [_text(left + 12, below + LINE * n, text, quiet=True) for n, text in enumerate(files)]
    if module in STEPS:
        right = left + width - 12
        lines.append(_text(right, top + 22, STEPS[module], anchor="end", quiet=True))
    return lines


def _text(
    x: float, y: float, text: str, *, bold: bool = False, quiet: bool = False, anchor: str = "start"
) -> str:
    weight = ' font-weight="600"' if bold else ""
    color = _PALETTE["quiet" if quiet else "text"]
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" fill="{color}" text-anchor="{anchor}"{weight}>'
        f"{escape(text)}</text>"
    )


def _imports_arrow(height: int) -> str:
    """Down the left side: who may import whom."""
    x, bottom = MARGIN + 6, height - MARGIN - GAP
    return (
        f'<path d="M{x} {MARGIN} V{bottom - 10} m-5 0 l5 10 l5 -10 z" '
        f'fill="{_PALETTE["stroke"]}" stroke="{_PALETTE["stroke"]}"/>'
        f'<text transform="translate({x - 6} {height / 2:.0f}) rotate(-90)" text-anchor="middle" '
        f'fill="{_PALETTE["quiet"]}">imports</text>'
    )


def main() -> int:
    """Write or check the pictures; 1 if one is not what it should be."""
    drawings = {"rooms": rooms(), "way": way(), "tables": tables()}
    pictures = {IMAGES / f"{name}.svg": drawn for name, drawn in drawings.items()}
    if "--check" in sys.argv:
        stale = [p for p, drawn in pictures.items() if not p.exists() or p.read_text() != drawn]
        sys.stdout.writelines(f"{path.name} is stale: python docs/draw.py\n" for path in stale)
        return int(bool(stale))
    for path, drawn in pictures.items():
        path.write_text(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
