"""For those who test transforms and pipelines, and write sinks: a frame of records without Kafka,
crashes on request, and the sinks' contract.

:mod:`eo_pipeline.testing.contract`, :mod:`eo_pipeline.testing.exactly_once`,
:mod:`eo_pipeline.testing.going_back`, :mod:`eo_pipeline.testing.tables` and
:mod:`eo_pipeline.testing.upsert` need pytest and are imported by themselves.
"""

import sys

from eo_pipeline.testing.faults import CrashRequested, crash_at, pause_at, raise_at
from eo_pipeline.testing.staging import child_of, dead_letters, first_entry, to_files
from eo_pipeline.testing.transforms import records_frame

if "pytest" in sys.modules:
    # so that an assertion of the contract that fails shows what it compared
    sys.modules["pytest"].register_assert_rewrite(
        "eo_pipeline.testing.contract",
        "eo_pipeline.testing.exactly_once",
        "eo_pipeline.testing.going_back",
        "eo_pipeline.testing.pruning",
        "eo_pipeline.testing.tables",
        "eo_pipeline.testing.upsert",
    )

__all__ = [
    "CrashRequested",
    "child_of",
    "crash_at",
    "dead_letters",
    "first_entry",
    "pause_at",
    "raise_at",
    "records_frame",
    "to_files",
]
