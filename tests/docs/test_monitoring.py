"""What dashboards, alerts and the page ask for is what `eo metrics` tells."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eo_pipeline.monitoring.prometheus import PipelineMetrics

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "examples" / "monitoring"


def told() -> set[str]:
    return {
        f"{metric.name}_total" if metric.type == "counter" else metric.name
        for metric in PipelineMetrics([]).collect()
    }


@pytest.mark.parametrize("file", ["alerts.yml", "grafana.json"])
def test_only_metrics_that_there_are_are_asked_for(file: str) -> None:
    asked = set(re.findall(r"\beo_[a-z_]+\b", (MONITORING / file).read_text()))
    assert asked
    assert asked <= told()


def test_the_page_tells_of_every_metric() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    assert told() == set(re.findall(r"`(eo_[a-z_]+)[`{]", page))
