"""The protocol explorer: every order in which runs, crashes and the sink can meet.

``rules`` says what is explored, ``model`` what the world is and what must be true of it,
``staging`` what lies beside the sink. ``recover`` and ``commit`` are the life of a run, ``events``
all that can happen next, ``explore`` the way through the states. ``docs/protocol-explorer.md``
tells the whole. Nothing here imports ``eo_pipeline``: the protocol is judged, not the code.
"""
