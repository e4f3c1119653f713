"""What grows with what: curves of us alone, each over one measure of size.

``python -m benchmarks.growth`` (``make bench-growth``) writes docs/benchmarks-growth.json, the
pictures, and the part "What grows with what" of docs/benchmarks.md. ``--only`` names curves.
"""
