"""The warm Spark of a project: a Spark Connect server that ``eo spark start`` keeps and that runs
find by themselves. ``record.py``: its record. ``watcher.py``: the process that owns it.
``manage.py``: start, stop, status. ``archive_maker.py``: the class archive.
"""
