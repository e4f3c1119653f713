"""A machine with jars and a cache of its own, for tests of archives of Spark's classes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from eo_pipeline.spark import JARS_VARIABLE
from eo_pipeline.spark.class_archive import CACHE_VARIABLE
from eo_pipeline.spark.connector import spark_connector_jars
from tests.support.servers import STATE

#: A session of its own that counts; whatever else is on stdout is too much.
COUNT = """
from eo_pipeline import SparkSettings
print(SparkSettings(warm=False, driver_memory="800m").session().range(10).count())
"""

#: Where a command is that is not installed.
PATHS = {"PYTHONPATH": str(Path(__file__).parents[2])}

#: The suite's JVMs live shortly: tests/spark_conf, which would be on the class path here, and no
#: archive holds a folder.
SHORT_LIVED = "-XX:TieredStopAtLevel=1"

#: How a JVM that logs where its classes come from calls our archive.
FROM_THE_ARCHIVE = "source: shared objects file (top)"


@dataclass
class Machine:
    """A machine with jars of its own, and a cache."""

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        foreign = ("SPARK_", "PYSPARK_")
        kept = {k: v for k, v in os.environ.items() if k != "CI" and not k.startswith(foreign)}
        return kept | {
            CACHE_VARIABLE: str(self.folder / "cache"),
            JARS_VARIABLE: str(self.folder / "jars"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "JAVA_TOOL_OPTIONS": SHORT_LIVED,
            **self.variables,
        }

    def eo(self, *arguments: str) -> str:
        """What the command says on stdout; it must end well."""
        done = self.ended(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ended(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """The command, when it has ended and nobody holds its output any more."""
        return subprocess.run(
            [sys.executable, "-m", "eo_pipeline.cli", *arguments],
            cwd=self.folder,
            env=self.environment | PATHS | variables,
            capture_output=True,
            text=True,
            timeout=600,
        )

    @property
    def cache(self) -> Path:
        """The folder of archives."""
        return self.folder / "cache" / "jvm"

    @property
    def jar(self) -> Path:
        """One of those that Spark is started with."""
        return next(iter((self.folder / "jars").glob("kafka-clients-*.jar")))

    @property
    def archives(self) -> list[Path]:
        return sorted(self.cache.glob("*.jsa"))

    def classes_from_the_archive(self, flags: str = SHORT_LIVED) -> list[str]:
        """Start a Spark; the lines of its log of classes that name our archive."""
        logs = self.folder / "classes"
        logs.mkdir()
        options = f"{flags} -Xlog:class+load:file={logs}/%p.log"
        done = subprocess.run(
            [sys.executable, "-c", COUNT],
            env=self.environment | {"JAVA_TOOL_OPTIONS": options},
            capture_output=True,
            text=True,
            timeout=300,
        )
        lines = [line for log in logs.glob("*.log") for line in log.read_text().splitlines()]
        shutil.rmtree(logs)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "10\n"
        assert [line for line in lines if "org.apache.spark.SparkContext " in line]
        return [line for line in lines if FROM_THE_ARCHIVE in line]


def machine_in(folder: Path) -> Machine:
    """One without an archive."""
    (folder / "jars").mkdir()
    for jar in spark_connector_jars(STATE):
        shutil.copy2(jar, folder / "jars")
    return Machine(folder)
