"""What breaks around the engine: errors, secrets, exit codes, and Dagster's mirror."""

from __future__ import annotations

from tests.mutants import Mutant

_CODES = "tests/cli/test_cli_codes.py::test_an_error_ends_with_its_code"
_MIRROR = "tests/dagster/test_mirror.py"

MUTANTS = (
    Mutant(
        "refusal-is-not-retried",
        "What the store will never take is not retryable.",
        "eo_pipeline/errors.py",
        "class SinkError(EoPipelineError):\n"
        '    """Writing to the sink is not possible as asked."""\n',
        "class SinkError(EoPipelineError):\n"
        '    """Writing to the sink is not possible as asked."""\n\n    retryable = True\n',
        (_CODES,),
    ),
    Mutant(
        "bad-record-is-not-retried",
        "A bad record or a loss is not retryable.",
        "eo_pipeline/errors.py",
        '    """Reading from Kafka is not possible as asked."""\n',
        '    """Reading from Kafka is not possible as asked."""\n\n    retryable = True\n',
        (_CODES,),
    ),
    Mutant(
        "unavailable-is-retried",
        "A server that is away is retryable, and ends with the code for that.",
        "eo_pipeline/cli/output.py",
        "    return ExitCode.TRY_AGAIN if error.retryable else ExitCode.FAILED\n",
        "    return ExitCode.FAILED\n",
        (_CODES,),
    ),
    Mutant(
        "exit-code-of-a-loss",
        "A loss has an exit code of its own.",
        "eo_pipeline/cli/output.py",
        "        return ExitCode.DATA_LOSS\n",
        "        return ExitCode.FAILED\n",
        (_CODES,),
    ),
    Mutant(
        "one-of-ours-leaves",
        "Whatever is raised inside leaves the package as one of its errors.",
        "eo_pipeline/boundary.py",
        '        raise _ours(f"Pipeline {pipeline!r}", error) from error\n',
        "        raise\n",
        ("tests/test_boundary.py",),
    ),
    Mutant(
        "errors-are-scrubbed",
        "Secrets leave the text of every error.",
        "eo_pipeline/errors.py",
        "in_words(scrubbed(arg))",
        "in_words(arg)",
        ("tests/test_scrubbing.py::test_a_secret_is_not_in_an_errors_text",),
    ),
    Mutant(
        "secret-names",
        "A setting whose name says so is a secret.",
        "eo_pipeline/errors.py",
        "password|passwd|pwd|passphrase|secret|",
        "passwd|pwd|passphrase|secret|",
        ("tests/test_scrubbing.py::test_a_secret_is_not_in_an_errors_text",),
    ),
    # Dagster
    Mutant(
        "data-version",
        "The data version that Dagster is told is the ledger's version.",
        "eo_pipeline/dagster/mirror.py",
        "            data_version=dg.DataVersion(str(self.id.version)),\n",
        "            data_version=dg.DataVersion(self.id.transaction_id),\n",
        (_MIRROR,),
    ),
    Mutant(
        "replay-is-its-checkpoints-partition",
        "A replay is an event of the partition of the checkpoint that it replayed.",
        "eo_pipeline/dagster/mirror.py",
        "key, partition = declared.checkpoints, str(entry.checkpoint)\n",
        "key, partition = declared.checkpoints, str(entry.version)\n",
        (_MIRROR,),
    ),
    Mutant(
        "partitions-are-live-versions",
        "The partitions are the checkpoints that stand: a rewind takes the later ones away.",
        "eo_pipeline/dagster/mirror.py",
        "            live -= {v for v in live if entry.target < v < entry.version}\n",
        "            pass\n",
        (_MIRROR,),
    ),
    Mutant(
        "reported-once",
        "An entry that the event log reports is not reported again.",
        "eo_pipeline/dagster/mirror.py",
        "        if candidate.id not in seen:\n",
        "        if True:\n",
        ("tests/dagster/test_reconcile.py",),
    ),
    Mutant(
        "cursor-waits-for-events",
        "The reconciler does not move past an entry whose event it may not have read yet.",
        "eo_pipeline/dagster/mirror.py",
        "            if not caught_up:\n",
        "            if False:\n",
        ("tests/dagster/test_reconcile.py::test_events_not_read_yet_are_waited_for",),
    ),
    Mutant(
        "cursor-of-partitions",
        "The partition sensor's cursor keeps the UUID of each topic: one made anew is new.",
        "eo_pipeline/dagster/topics.py",
        "and topic_id in (None, cluster.topic_ids.get(tp.topic))",
        "",
        ("tests/dagster/test_new_partitions.py",),
    ),
    Mutant(
        "transaction-identifies-the-event",
        "An event reports a ledger entry by its transaction, not by its version alone.",
        "eo_pipeline/dagster/mirror.py",
        "    return EntryId(int(version), transaction)\n",
        '    return EntryId(int(version), "")\n',
        (_MIRROR,),
    ),
)
