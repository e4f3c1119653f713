"""A program that kills: random faults on real pipelines, judged from outside; seeded.

``python -m tests.kills --minutes 60 --seed 7`` (``make correctness``). A *life* is one pipeline
on a topic and a table of its own. Its plan is drawn from the seed (:mod:`tests.kills.plan`). A step
is one operation in a process of its own and one fault (:mod:`tests.kills.faults`); after every step
somebody who shares no code with the product reads the table (:mod:`tests.kills.targets`) and
compares it with what was written (:mod:`tests.kills.judge`). What happened stands in a history, one
JSON line an event; docs/correctness.md is made of the sums (:mod:`tests.kills.report`).
"""
