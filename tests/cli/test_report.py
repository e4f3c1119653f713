"""`eo report`: one page that asks for nothing else."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from eo_pipeline.embedded.ports import free_port
from tests.cli.shell import Shell, eo

__all__ = ["eo"]

SVG = "{http://www.w3.org/2000/svg}"


def drawing(path: Path) -> ET.Element:
    """The picture, as a parser of XML reads it."""
    text = path.read_text()
    svg = re.search(r"<svg.*?</svg>", text, re.DOTALL)
    assert svg is not None
    return ET.fromstring(svg[0].replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1))


@pytest.mark.core
def test_the_page_shows_what_stands_what_was_left_behind_and_why(eo: Shell) -> None:
    eo.bench.topic.write(250)
    eo.document(name="events")
    assert eo("run").code == 0
    assert eo("rewind", "1", "--yes", "--reason", "<b>wrong</b> & sorry").code == 0
    assert eo("replay", "1", "--yes").code == 0
    assert eo("report").out.startswith("events.html: 6 versions")

    page = Path("events.html")
    text = page.read_text()
    assert not re.search(r"""(src|href|url)\s*[=(]""", text), "it asks for another file"
    assert "&lt;b&gt;wrong&lt;/b&gt; &amp; sorry" in text
    assert "<b>wrong" not in text
    svg = drawing(page)
    assert svg.get("role") == "img"
    circles = [each.get("class") for each in svg.iter(f"{SVG}circle")]
    assert circles == ["forward", "forward dead", "forward dead", "replay"]
    titles = [str(each.text) for each in svg.iter(f"{SVG}title")]
    assert titles[1].startswith("version 1: forward\n")
    assert "100 records, 100 rows" in titles[1]
    assert "undone" in titles[2]
    assert titles[4].startswith("version 4: rewind to 1\n")
    assert titles[5].startswith("version 5: replay of 1\n")
    assert ">150</dd>" in text, "what waits now"


def test_the_history_is_shown_while_kafka_is_away_and_before_the_first_run(eo: Shell) -> None:
    eo.document(name="events")
    assert eo("report", "--out", "empty.html").code == 0
    assert "There is no version yet." in Path("empty.html").read_text()

    eo.bench.topic.write(10)
    assert eo("run").code == 0
    source = {**eo.bench.config["source"], "bootstrap_servers": f"127.0.0.1:{free_port()}"}
    eo.document(name="events", source=source)
    shown = eo("report", "--out", "away.html")
    assert shown.code == 0
    assert "Connection refused" in shown.err
    assert "Connection refused" in Path("away.html").read_text()
    assert len(list(drawing(Path("away.html")).iter(f"{SVG}circle"))) == 1

    nowhere = eo("report", "--out", "none/such.html")
    assert nowhere.code == 2
    assert "cannot be written" in nowhere.err
