"""``python -m eo_pipeline.cli``, where the script ``eo`` is not on the path."""

from eo_pipeline.cli import main

main()
