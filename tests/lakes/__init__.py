"""Drawn sequences over lake tables: what pipelines and other engines do to one table, in any order.

python -m tests.lakes --seed 7 --sequences 100 --store delta

A seed draws the same tables, records and steps again. After each step the table is what a plain
model says (:mod:`tests.lakes.model`), row by row, from every reader (:mod:`tests.lakes.readers`).
"""
