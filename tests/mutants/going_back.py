"""What breaks going back, mending by hand, or the audit."""

from __future__ import annotations

from tests.mutants import Mutant

_TARGETS = "tests/operations/test_targets.py"
_WITHOUT_SPARK = "tests/runs/test_without_spark.py"
_FINDINGS = "tests/audit/test_audit_findings.py"

MUTANTS = (
    Mutant(
        "live-branch",
        "What a rewind left behind is no target any more.",
        "eo_pipeline/ledger/history.py",
        "            live = [e for e in live if e.version <= target]\n",
        "            live = [e for e in live if e.version <= target + 1]\n",
        (
            f"{_TARGETS}::test_a_version_that_was_left_behind_is_refused_and_a_moment_goes_on_to_what_stands",
        ),
    ),
    Mutant(
        "replayed-rows-count",
        "Of a checkpoint that was replayed the newest replay wrote the rows.",
        "eo_pipeline/ledger/history.py",
        "        Checkpoint(entry, replays.get(entry.version, entry))\n",
        "        Checkpoint(entry, entry)\n",
        ("tests/ledger/test_branch.py",),
    ),
    Mutant(
        "stale-plan",
        "A plan is applied only to the head it was made from.",
        "eo_pipeline/operations/change_plan.py",
        "    if (head.id if head else None) != (planned.id if planned else None):\n",
        "    if (head is None) != (planned is None):\n",
        (f"{_TARGETS}::test_a_plan_is_stale_once_the_head_is_another_or_gone",),
    ),
    Mutant(
        "read-again-from-the-target",
        "After a rewind reading goes on where the target stood.",
        "eo_pipeline/operations/rewind.py",
        "        child = self.head.child(Operation.REWIND, run_id, self.target.offsets)\n",
        "        child = self.head.child(Operation.REWIND, run_id, self.head.offsets)\n",
        (_WITHOUT_SPARK,),
    ),
    Mutant(
        "rewind-counts",
        "After a rewind the ledger's total is what is left in the table.",
        "eo_pipeline/operations/rewind.py",
        "            counts=self.head.counts.totals(*(c.counts for c in self.checkpoints)),\n",
        "            counts=self.head.counts.totals(),\n",
        (_WITHOUT_SPARK,),
    ),
    Mutant(
        "replay-keeps-the-number",
        "Replayed rows carry the number of their checkpoint.",
        "eo_pipeline/ledger/entry.py",
        "        if self.operation is Operation.REPLAY and self.target is not None:\n",
        "        if False:\n",
        (
            "tests/ledger/test_entry.py::"
            "test_a_replay_publishes_under_its_targets_number_and_everything_else_under_its_own",
        ),
    ),
    Mutant(
        "replay-moves-no-offset",
        "A replay reads its checkpoint's ranges and moves no offset.",
        "eo_pipeline/operations/replay.py",
        "        head.child(Operation.REPLAY, run_id, head.offsets),\n",
        "        head.child(Operation.REPLAY, run_id, checkpoint.entry.offsets),\n",
        (_TARGETS,),
    ),
    Mutant(
        "fork-begins-at-the-version",
        "A fork begins where the version stood that it is made from.",
        "eo_pipeline/operations/fork.py",
        "            offsets=self.target.offsets,\n",
        "            offsets=self.head.offsets,\n",
        (_WITHOUT_SPARK,),
    ),
    Mutant(
        "fork-takes-no-ledger",
        "A fork into a pipeline that has a ledger is refused.",
        "eo_pipeline/operations/fork.py",
        "            if head is not None:\n                raise GoingBackError(",
        "            if False:\n                raise GoingBackError(",
        (_WITHOUT_SPARK,),
    ),
    Mutant(
        "redrive-what-was-set-aside",
        "A redrive reads again the checkpoints that set records aside, and no others.",
        "eo_pipeline/operations/replay.py",
        "    return tuple(checkpoint for checkpoint in live if checkpoint.counts.dead_letters)\n",
        "    return tuple(live)\n",
        (_WITHOUT_SPARK,),
    ),
    Mutant(
        "redrive-once",
        "What a redrive has landed is not redriven again.",
        "eo_pipeline/operations/replay.py",
        "    return tuple(checkpoint for checkpoint in live if checkpoint.counts.dead_letters)\n",
        "    return tuple(entry for entry in live if entry.entry.counts.dead_letters)\n",
        (_WITHOUT_SPARK,),
    ),
    Mutant(
        "accepted-loss-is-named",
        "An accepted loss names its holes in the ledger for ever.",
        "eo_pipeline/runs/runner.py",
        '        details={**remarks, "holes": holes},\n',
        "        details={**remarks},\n",
        (_WITHOUT_SPARK,),
    ),
    Mutant(
        "accepted-loss-was-looked-at",
        "Only a loss that somebody looked at, of the same kind, is accepted.",
        "eo_pipeline/runs/runner.py",
        "    return {tp: now[tp] for tp, (kind, _) in looked_at.items() if tp in now and "
        "now[tp][0] is kind}\n",
        "    return now\n",
        ("tests/kafka/test_losses.py",),
    ),
    Mutant(
        "no-position-goes-down",
        "Past an accepted loss no position is forgotten: it is put aside.",
        "eo_pipeline/kafka/losses.py",
        "        if tp.topic in replaced or (tp in kinds and tp not in offsets)\n",
        "        if tp.topic in replaced\n",
        (
            "tests/kafka/test_losses.py::"
            "test_an_accepted_loss_goes_on_where_records_are_and_no_position_is_forgotten",
        ),
    ),
    Mutant(
        "adopt-later-rows",
        "A ledger is not adopted under a table that holds rows of later versions.",
        "eo_pipeline/operations/repair.py",
        "    if session.holds_rows(following):\n",
        "    if False:\n",
        (_WITHOUT_SPARK,),
    ),
    Mutant(
        "adopt-writes-an-entry",
        "Adopting the sink's older state is a version of its own.",
        "eo_pipeline/operations/repair.py",
        "        recovery.session.publish(entry, StagedOutput())\n",
        "",
        (_WITHOUT_SPARK,),
    ),
    Mutant(
        "reset-leaves-others",
        "A reset drops this pipeline's ledger and no other's.",
        "eo_pipeline/sinks/sql/session.py",
        '        mine = f"FROM {store.ledger.sql} WHERE pipeline = {store.mark}"\n',
        '        mine = f"FROM {store.ledger.sql} WHERE {store.mark}::text IS NOT NULL"\n',
        (_WITHOUT_SPARK,),
    ),
    # audit
    Mutant(
        "audit-counts",
        "An audit names a difference between the ledger's count and the rows in the table.",
        "eo_pipeline/audit/judge.py",
        "        more = repaired - self._checkpoint.counts.rows\n",
        "        more = 0 * repaired\n",
        (f"{_FINDINGS}::test_table_and_kafka_that_agree_against_the_ledger_are_miscounted",),
    ),
    Mutant(
        "audit-counts-records",
        "An audit compares the ledger's counts of bad and skipped records with Kafka's.",
        "eo_pipeline/audit/judge.py",
        "            differing[_SKIPPED] = abs(counts.tombstones - skipped)\n",
        "",
        (f"{_FINDINGS}::test_what_the_ledger_counted_is_compared_with_what_is_read_again",),
    ),
    Mutant(
        "audit-coordinates",
        "An audit finds a record whose row is missing, by topic, partition and offset.",
        "eo_pipeline/audit/compare.py",
        "                kind.when(expected > found, RowKind.MISSING)\n",
        "                kind.when(F.lit(False), RowKind.MISSING)\n",
        ("tests/audit/test_each_kind_of_row.py",),
    ),
    Mutant(
        "audit-duplicates",
        "An audit finds a row that is there twice.",
        "eo_pipeline/audit/compare.py",
        "                .when((found > expected) & (expected > 0), RowKind.DUPLICATED)\n",
        "",
        ("tests/audit/test_each_kind_of_row.py",),
    ),
    Mutant(
        "audit-values",
        "An audit compares the checksum of the values with the one that was committed.",
        "eo_pipeline/audit/checksums.py",
        "        return checksum.digest(self._sums[number].sums) == stored.digest\n",
        "        return True\n",
        ("tests/audit/test_values_judged.py",),
    ),
    Mutant(
        "audit-contiguity",
        "An audit finds two live checkpoints that read the same offset.",
        "eo_pipeline/ledger/history.py",
        "            if start < furthest[1]:\n",
        "            if False:\n",
        ("tests/dagster/test_contiguity.py",),
    ),
)
