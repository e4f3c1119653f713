"""pyarrow, imported when something of it is first used: with numpy, which comes along, it takes a
third of a command that finds nothing to do.

    from eo_pipeline.arrow import pa, pq

``pc`` is ``pyarrow.compute``, ``pads`` ``pyarrow.dataset``, ``pq`` ``pyarrow.parquet``, ``pt``
``pyarrow.types``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eo_pipeline.on_demand import Module

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as pads
    import pyarrow.parquet as pq
    import pyarrow.types as pt
else:
    pa, pc = Module("pyarrow"), Module("pyarrow.compute")
    pads = Module("pyarrow.dataset")
    pq, pt = Module("pyarrow.parquet"), Module("pyarrow.types")

__all__ = ["pa", "pads", "pc", "pq", "pt"]
