"""The warm Spark of a project: a Spark Connect server that ``eo spark start`` keeps, and that runs
find without being told. ``record.py``: what is written down of it. ``watcher.py``: the process
beside it. ``keeping.py``: start and stop. ``finding.py``: what a run does. ``asking.py``: status.
"""
