"""What breaks reading: which offsets come next, what is lost, what a record becomes, the counts."""

from __future__ import annotations

from tests.mutants import Mutant

_PLANNER = "tests/kafka/test_planner.py"
_LOSSES = "tests/kafka/test_losses.py"
_KAFKA = "tests/kafka/test_looking_at_kafka.py"
_VALUES = "tests/batch/test_each_reason.py"
_COUNTING = "tests/batch/test_counting.py"
_DECODED = "tests/batch/test_decoded_source.py"
_LIMITS = "tests/batch/test_fast_path_limits.py"
_POLICY = "tests/runs/test_refused_records.py"
_WITHOUT_SPARK = "tests/runs/test_without_spark.py"

MUTANTS = (
    # which offsets
    Mutant(
        "ranges-begin-at-the-ledger",
        "A range begins where the ledger stands.",
        "eo_pipeline/kafka/planner.py",
        "        start = positions[tp]\n",
        "        start = max(positions[tp], bounds.beginning + 1)\n",
        (f"{_PLANNER}::test_ranges_begin_at_the_ledgers_offset_and_never_pass_the_end",),
    ),
    Mutant(
        "run-stops-at-the-ends-it-saw",
        "A run reads no further than the ends it saw when it began.",
        "eo_pipeline/kafka/planner.py",
        "        end = min(bounds.end, stops.get(tp, start))\n",
        "        end = bounds.end\n",
        (f"{_PLANNER}::test_a_run_stops_at_the_ends_it_saw_first_also_when_the_topic_grows",),
    ),
    Mutant(
        "fair-share",
        "No partition gets more than its share of the limit while another one waits.",
        "eo_pipeline/kafka/planner.py",
        "        shares[i] = min(wanted[i], left // (count - rank))\n",
        "        shares[i] = min(wanted[i], left)\n",
        (
            f"{_PLANNER}::test_shares_use_the_whole_limit_and_differ_by_at_most_one_among_the_unsatisfied",
        ),
    ),
    Mutant(
        "last-stable-offset",
        "Under read_committed a partition ends at its last stable offset.",
        "eo_pipeline/kafka/admin.py",
        '        levels = (earliest, None), (latest, None), (latest, "read_uncommitted")\n',
        '        levels = (earliest, None), (latest, "read_uncommitted"), '
        '(latest, "read_uncommitted")\n',
        (_KAFKA,),
    ),
    Mutant(
        "bounds-of-one-topic",
        "Offsets belong to a topic's UUID only if it is the same before and after the look.",
        "eo_pipeline/kafka/admin.py",
        "        unsure = {name for name, topic in after.items() if before[name] != topic}\n",
        "        unsure = set[str]()\n",
        (_KAFKA,),
    ),
    Mutant(
        "new-partition",
        "A partition that nobody has read is read from its first record.",
        "eo_pipeline/kafka/partitions.py",
        "        positions[tp] = kept or 0\n",
        "        positions[tp] = kept or bounds.end\n",
        (f"{_LOSSES}::test_a_partition_added_to_a_known_topic_is_read_from_its_first_record",),
    ),
    Mutant(
        "start-is-resolved-once",
        "The start mode is resolved once: what the ledger says is never asked for again.",
        "eo_pipeline/runs/runner.py",
        "        head = head or self._start(cluster)\n",
        "        head = self._start(cluster)\n",
        (_WITHOUT_SPARK,),
    ),
    Mutant(
        "group-offsets-never-decide",
        "Reading goes on where the ledger stands, and never where a consumer group does.",
        "eo_pipeline/runs/runner.py",
        "        limits = self.context.source.limits\n"
        "        return plan(\n"
        "            positions_of(head, cluster),\n",
        "        limits = self.context.source.limits\n"
        "        return plan(\n"
        "            self.context.admin.start_offsets(cluster),\n",
        (_WITHOUT_SPARK,),
    ),
    Mutant(
        "start-modes",
        "A partition without an offset of its own starts where or_else says.",
        "eo_pipeline/kafka/admin.py",
        '    ends = or_else == "latest"\n',
        '    ends = or_else != "latest"\n',
        (_KAFKA,),
    ),
    Mutant(
        "no-option-of-spark",
        "No option given to Spark decides which records are read.",
        "eo_pipeline/kafka/client.py",
        "        if name.lower() not in connector and not _is_for_the_consumer(name.lower())\n",
        '        if name == "nothing"\n',
        ("tests/config/test_documents.py::test_no_option_of_spark_decides_which_records_are_read",),
    ),
    # losses
    Mutant(
        "below-beginning",
        "Records that retention took before they were read are a loss.",
        "eo_pipeline/kafka/losses.py",
        "    if expected < bounds.beginning:\n",
        "    if False:\n",
        (f"{_LOSSES}::test_each_way_to_lose_records_is_told_apart",),
    ),
    Mutant(
        "truncated",
        "A log that ends before the ledger's offset is a loss.",
        "eo_pipeline/kafka/losses.py",
        "    if expected > bounds.written or expected >= cluster.altered.get(tp, expected + 1):\n",
        "    if expected >= cluster.altered.get(tp, expected + 1):\n",
        (f"{_LOSSES}::test_each_way_to_lose_records_is_told_apart",),
    ),
    Mutant(
        "topic-id",
        "A topic with another UUID is another topic, whatever its name.",
        "eo_pipeline/kafka/losses.py",
        "    return recorded is not None and present is not None and recorded != present\n",
        "    return False\n",
        (f"{_LOSSES}::test_each_way_to_lose_records_is_told_apart",),
    ),
    Mutant(
        "partition-gone",
        "A partition of the ledger that Kafka does not show is a loss.",
        "eo_pipeline/kafka/losses.py",
        "        return LossKind.VANISHED\n",
        "        return None\n",
        (f"{_LOSSES}::test_each_way_to_lose_records_is_told_apart",),
    ),
    Mutant(
        "end-fell",
        "A range that was planned and ends past the log now cannot be read whole.",
        "eo_pipeline/kafka/losses.py",
        "        kind = kind or kind_of_loss(r.topic_partition, r.end, topic_ids, cluster)\n",
        "        pass\n",
        (f"{_LOSSES}::test_a_range_that_ends_past_the_log_cannot_be_read_whole",),
    ),
    Mutant(
        "loss-stops-the-run",
        "A run stops at a loss, before it has read anything, unless the policy says otherwise.",
        "eo_pipeline/runs/runner.py",
        "        if refused:\n",
        "        if False:\n",
        (_WITHOUT_SPARK,),
    ),
    Mutant(
        "topics-after-staging",
        "Rows of a topic that was replaced while they were staged are not committed.",
        "eo_pipeline/runs/checkpoint.py",
        "            _refuse_replaced_topics(admin, transaction.entry)\n",
        "",
        ("tests/runs/test_losing_a_race.py",),
    ),
    Mutant(
        "retention-margin",
        "What retention would take while it is read again is not gone back to.",
        "eo_pipeline/operations/change_plan.py",
        "            if floor is not None and r.span and r.start < floor:\n",
        "            if False:\n",
        (f"{_LOSSES}::test_what_would_be_read_again_must_outlive_the_reading",),
    ),
    # counting
    Mutant(
        "read-adds-up",
        "Records read are the good, the bad and the skipped ones together.",
        "eo_pipeline/batch/counting.py",
        "    if seen.records != seen.good + seen.bad + seen.skipped:\n",
        "    if False:\n",
        (_COUNTING,),
    ),
    Mutant(
        "staged-is-made",
        "As many rows are staged as the Spark job made.",
        "eo_pipeline/batch/counting.py",
        "    if rows == staged.rows:\n",
        "    if True:\n",
        (_COUNTING,),
    ),
    Mutant(
        "counts-prove-themselves",
        "Counts that a transform may have touched are believed only if they prove themselves.",
        "eo_pipeline/batch/counting.py",
        "        and (counted[_SQUARES] - squares) % _PRIME == 0\n",
        "",
        (f"{_COUNTING}::test_ranges_that_were_not_read_whole_do_not",),
    ),
    # bad records and values
    Mutant(
        "fast-path-limits",
        "Rows for a store that holds fewer values than the fast path writes go by Spark's plan.",
        "eo_pipeline/batch/fast_path.py",
        "    return limits.years[0] <= _YEARS[0] and limits.years[1] >= _YEARS[1]\n",
        "    return True\n",
        (f"{_LIMITS}::test_a_store_of_fewer_years_is_left_to_sparks_plan",),
    ),
    Mutant(
        "fast-path-needed",
        "The fast path takes no null where an upsert needs a value.",
        "eo_pipeline/batch/fast_path.py",
        "(*never_null, *limits.needed)",
        "(*never_null,)",
        (f"{_LIMITS}::test_columns_that_need_a_value_are_those_of_the_table_and_of_the_sink",),
    ),
    Mutant(
        "decoded-read-whole",
        "Counts of tasks that did not read all records are not believed.",
        "eo_pipeline/batch/decoded_source.py",
        "return read_counts(counted, self.decoder.schemas) if whole == len(counted) else None",
        "return read_counts(counted, self.decoder.schemas)",
        (f"{_DECODED}::test_records_that_a_transform_does_not_take_are_counted_by_a_second_job",),
    ),
    Mutant(
        "judge-needed",
        "What a task gave before a record that needs a judge does not count.",
        "eo_pipeline/batch/decoded_source.py",
        'if any(part.get("why") for part in parts):',
        "if not parts:",
        (f"{_DECODED}::test_a_judge_is_made_when_a_record_needs_one",),
    ),
    Mutant(
        "letters-complete",
        "Of a checkpoint with bad records all are in the files of its dead letters.",
        "eo_pipeline/batch/native_decode.py",
        "        if table.rows != seen.bad:\n",
        "        if table.rows > seen.bad:\n",
        (f"{_DECODED}::test_a_file_of_dead_letters_that_is_gone_is_noticed",),
    ),
    Mutant(
        "policy-fail",
        "By on_bad_record: fail one bad record stops the run.",
        "eo_pipeline/batch/validation.py",
        '(source.on_bad_record == "fail" or seen.bad > source.dead_letter_limit)',
        "seen.bad > source.dead_letter_limit",
        (_POLICY,),
    ),
    Mutant(
        "dead-letter-limit",
        "More bad records than dead_letter_limit stop the run.",
        "eo_pipeline/batch/validation.py",
        '(source.on_bad_record == "fail" or seen.bad > source.dead_letter_limit)',
        'source.on_bad_record == "fail"',
        (_POLICY,),
    ),
    Mutant(
        "bad-is-not-good",
        "A bad record makes no row.",
        "eo_pipeline/batch/decode.py",
        "        return F.col(ERROR).isNull() & ~self._skipped()\n",
        "        return ~self._skipped()\n",
        (_VALUES,),
    ),
    Mutant(
        "reasons",
        "The first thing wrong with a record is the reason in the dead letters.",
        "eo_pipeline/batch/decode_json.py",
        "error = error.when(fault.holds, fault.reason)\n        for field in schema:\n",
        "error = error.when(F.lit(False), fault.reason)\n        for field in schema:\n",
        (_VALUES,),
    ),
    Mutant(
        "decimal-overflow",
        "A decimal that its column would round makes the record bad.",
        "eo_pipeline/batch/json_values.py",
        "        return F.when(_is_exact(leaf, wanted), bare.try_cast(wanted))\n",
        "        return bare.try_cast(wanted)\n",
        (_VALUES,),
    ),
    Mutant(
        "duplicate-fields",
        "A record with a field twice is bad.",
        "eo_pipeline/batch/unknown_fields.py",
        "    twice = F.size(F.array_distinct(keys)) < F.size(keys)\n    if",
        "    twice = F.lit(False)\n    if",
        (_VALUES,),
    ),
    Mutant(
        "required-field",
        "A record that lacks a field declared NOT NULL is bad.",
        "eo_pipeline/batch/decode_json.py",
        "                error = error.when(leaf.isNull(), missing)\n",
        "                error = error.when(F.lit(False), missing)\n",
        (_VALUES,),
    ),
    Mutant(
        "utc",
        "A time without a zone is UTC, whatever the session's zone is.",
        "eo_pipeline/spark/launch.py",
        '    "spark.sql.session.timeZone": "UTC",\n',
        "",
        (_VALUES,),
    ),
    Mutant(
        "tombstones",
        "A tombstone is skipped, and counted, only where tombstones: skip asks for it.",
        "eo_pipeline/batch/decode.py",
        '        skip = self.source.tombstones == "skip"\n',
        "        skip = True\n",
        (_VALUES,),
    ),
    # schemas
    Mutant(
        "strictest-policy",
        "Of several changes of one column the strictest policy decides.",
        "eo_pipeline/formats/schema_diff.py",
        "        return max(policies, key=_ORDER.index, default=Policy.EVOLVE)\n",
        "        return min(policies, key=_ORDER.index, default=Policy.EVOLVE)\n",
        ("tests/formats/test_schema_changes.py",),
    ),
    Mutant(
        "freeze",
        "A change under the policy freeze stops the run.",
        "eo_pipeline/formats/schema_diff.py",
        "return tuple(decided for decided in self.all if decided.policy is Policy.FREEZE)\n",
        "return ()\n",
        ("tests/formats/test_schema_changes.py",),
    ),
)
