"""The warm Spark of a project: a Spark Connect server that ``eo spark start`` keeps and runs find by
themselves. ``record.py``: what is recorded of it. ``watcher.py``: the process that owns it.
``manage.py``: start, stop, status. ``archive_maker.py``: the class archive.
"""
