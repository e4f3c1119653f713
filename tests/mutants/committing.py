"""What breaks the commit, the recovery, the staged files or the ledger."""

from __future__ import annotations

from tests.mutants import Mutant

_CONTRACT = "tests/sinks/postgres/test_postgres_contract.py::TestAppend"
_RECOVERY = "tests/runs/test_recovery.py"
_STEPS = "tests/sinks/test_protocol_steps.py"
_TRANSACTION = "tests/runs/test_transaction.py"
_STAGING = "tests/staging/test_staging.py"
_CHAIN = "tests/ledger/test_chain.py"

MUTANTS = (
    # the commit protocol
    Mutant(
        "published-is-staged",
        "A commit publishes exactly as many rows and dead letters as the ledger entry says.",
        "eo_pipeline/staging/rows.py",
        "        if staged != counted:\n",
        "        if False:\n",
        (f"{_STEPS}::test_no_other_number_of_rows_is_published_than_the_entry_says",),
    ),
    Mutant(
        "files-are-verified",
        "A commit verifies the staged files before it sends a row.",
        "eo_pipeline/sinks/session.py",
        "                staged.verify(entry)  # publish step 3\n",
        "                pass\n",
        (f"{_STEPS}::test_no_other_number_of_rows_is_published_than_the_entry_says",),
    ),
    Mutant(
        "file-size",
        "A staged file of another size than the manifest says is refused.",
        "eo_pipeline/staging/rows.py",
        "    if size != file.size:\n",
        "    if False:\n",
        (f"{_STAGING}::test_a_file_of_the_wrong_size_or_missing_is_refused_before_it_is_read",),
    ),
    Mutant(
        "file-exists",
        "A staged file that is missing is refused before anything is published.",
        "eo_pipeline/staging/rows.py",
        "    if size is None:\n",
        "    if size is None and file.rows < 0:\n",
        (f"{_STAGING}::test_a_file_of_the_wrong_size_or_missing_is_refused_before_it_is_read",),
    ),
    Mutant(
        "file-rows",
        "A staged file gives as many rows as the manifest says.",
        "eo_pipeline/staging/rows.py",
        "    if rows != file.rows:\n",
        "    if False:\n",
        (f"{_STAGING}::test_a_file_that_gives_other_rows_than_promised_is_refused_when_read",),
    ),
    Mutant(
        "already-committed",
        "An entry that the ledger holds is ALREADY_COMMITTED and not published again.",
        "eo_pipeline/sinks/session.py",
        "        if held.id == entry.id:\n",
        "        if False:\n",
        (f"{_STEPS}::test_rows_and_entry_go_in_by_the_steps_in_their_order_and_only_once",),
    ),
    Mutant(
        "version-is-no-identity",
        "Another transaction at the same version is fenced: a number alone is no identity.",
        "eo_pipeline/sinks/session.py",
        "        if held.id == entry.id:\n",
        "        if held.version == entry.version:\n",
        (f"{_STEPS}::test_an_entry_is_known_by_its_transaction_and_its_parent_by_that_too",),
    ),
    Mutant(
        "parent-is-the-head",
        "A commit lands only if the ledger's head is the entry's parent, by transaction id.",
        "eo_pipeline/ledger/entry.py",
        "        return self.parent == head.id and (seal is None or seal == head.content_hash)\n",
        "        return self.parent.version == head.version\n",
        (f"{_STEPS}::test_an_entry_is_known_by_its_transaction_and_its_parent_by_that_too",),
    ),
    Mutant(
        "version-n-plus-1",
        "An entry's version is its parent's and one.",
        "eo_pipeline/ledger/entry.py",
        "        elif self.parent.version != expected:\n",
        "        elif self.parent.version > expected:\n",
        (f"{_STAGING}::test_an_entry_that_skips_a_version_cannot_be_made",),
    ),
    Mutant(
        "lost-reply-is-unknown",
        "An error of the commit itself leaves the outcome unknown: it is no refusal.",
        "eo_pipeline/sinks/session.py",
        "            with self._translating(partial(self._unknown, entry)):\n",
        "            with self._translating(self.explain):\n",
        (
            f"{_STEPS}::"
            "test_what_failed_before_the_commit_left_nothing_and_of_the_commit_itself_nobody_knows",
        ),
    ),
    Mutant(
        "unknown-stays-unknown",
        "After a lost reply no other answer to a later try says that nothing landed.",
        "eo_pipeline/runs/transaction.py",
        "        if self.state is TransactionState.UNKNOWN:\n",
        "        if False:\n",
        (f"{_TRANSACTION}::test_after_a_lost_reply_no_later_answer_proves_that_nothing_landed",),
    ),
    Mutant(
        "unknown-is-tried-again",
        "A lost reply is resolved by trying the same transaction again.",
        "eo_pipeline/runs/transaction.py",
        "        retry=retry_if_exception_type(CommitUnknownError),\n",
        "        retry=retry_if_exception_type(FencedError),\n",
        (f"{_TRANSACTION}::test_a_lost_reply_is_tried_again_under_the_same_transaction_id",),
    ),
    Mutant(
        "failure-is-settled",
        "After a failed step the ledger is asked whether the entry landed all the same.",
        "eo_pipeline/sinks/session.py",
        "            landed = self.has_landed(entry)\n        except",
        "            landed = False\n        except",
        (
            f"{_STEPS}::"
            "test_after_a_failure_the_ledger_tells_whether_somebody_else_committed_this_very_entry",
        ),
    ),
    Mutant(
        "refusal-is-marked",
        "A promise that the store will never take is marked refused.",
        "eo_pipeline/runs/transaction.py",
        "            if not error.retryable:\n",
        "            if False:\n",
        (f"{_TRANSACTION}::test_a_refused_attempt_is_marked_and_deletes_nothing",),
    ),
    # recovery
    Mutant(
        "promise-is-kept",
        "Recovery commits a promise whose parent is the head.",
        "eo_pipeline/runs/recovery.py",
        "        if manifest is None or not manifest.entry.is_child_of(head):\n",
        "        if True:\n",
        (f"{_RECOVERY}::test_a_promise_on_top_of_the_head_is_kept",),
    ),
    Mutant(
        "refused-is-not-met-again",
        "A promise that is marked refused is not committed by a later run.",
        "eo_pipeline/runs/recovery.py",
        "    return attempt.id.version == expected and not attempt.is_refused\n",
        "    return attempt.id.version == expected\n",
        (f"{_RECOVERY}::test_a_refused_promise_is_marked_kept_in_place_and_never_met_again",),
    ),
    Mutant(
        "absent-is-not-dead",
        "A folder is deleted only if the ledger positively holds a transaction at its version.",
        "eo_pipeline/runs/recovery.py",
        "                if held is None and attempt.id.version >= head.floor:\n",
        "                if False:\n",
        (_RECOVERY,),
    ),
    Mutant(
        "lake-files-stay",
        "The files of a committed attempt are the lake's and are not deleted with its promise.",
        "eo_pipeline/runs/recovery.py",
        "                    attempt.delete_committed(rows=self.copies_rows)\n",
        "                    attempt.delete_committed(rows=True)\n",
        (f"{_RECOVERY}::test_in_a_lake_the_committed_files_stay_and_only_the_promise_goes",),
    ),
    Mutant(
        "live-folder-is-left-alone",
        "A folder without manifest is left alone while its owner may live.",
        "eo_pipeline/runs/recovery.py",
        "            if attempt.id.version > head.version and attempt.is_abandoned:\n",
        "            if attempt.id.version > head.version:\n",
        (f"{_RECOVERY}::test_a_folder_without_manifest_is_left_alone_until_its_version_is_taken",),
    ),
    Mutant(
        "dead-owners-promise-stays",
        "A dead owner's promise is no abandoned attempt.",
        "eo_pipeline/staging/attempt.py",
        "        return is_dead(self.folder) and not (self.folder / MANIFEST).is_file()\n",
        "        return is_dead(self.folder)\n",
        (
            "tests/staging/test_leaving_nothing.py::"
            "test_a_dead_owners_promise_is_no_abandoned_attempt",
        ),
    ),
    Mutant(
        "older-ledger-is-refused",
        "A ledger that lacks a commit seen confirmed before is refused.",
        "eo_pipeline/runs/recovery.py",
        "        if not lost:\n",
        "        if True:\n",
        (f"{_RECOVERY}::test_a_ledger_that_lacks_a_confirmed_commit_is_refused_until_adopted",),
    ),
    Mutant(
        "unreadable-promise-stops",
        "A promise that cannot be read stops the run.",
        "eo_pipeline/staging/attempt.py",
        "            raise ManifestDamagedError(str(path), self.id.version, _in_a_line(error)) "
        "from error\n",
        "            return None\n",
        (f"{_RECOVERY}::test_a_promise_that_cannot_be_read_stops_the_run_until_it_is_set_aside",),
    ),
    # staging
    Mutant(
        "manifest-is-atomic",
        "The manifest appears whole or not at all.",
        "eo_pipeline/staging/attempt.py",
        "        write_atomically(self.folder / MANIFEST, json.dumps(manifest.to_json()))\n",
        "        (self.folder / MANIFEST).write_text(json.dumps(manifest.to_json()))\n",
        (f"{_STAGING}::test_a_half_written_manifest_is_never_seen",),
    ),
    Mutant(
        "manifest-is-last",
        "No manifest is there before all rows are staged.",
        "eo_pipeline/runs/transaction.py",
        "        self._output, counts = stage(self.entry, self._attempt)\n",
        "        if self._attempt:\n"
        "            self._attempt.write_manifest(Manifest(self.entry, self._output))\n"
        "        self._output, counts = stage(self.entry, self._attempt)\n",
        (f"{_TRANSACTION}::test_nothing_is_promised_before_all_rows_are_staged",),
    ),
    Mutant(
        "manifest-hash",
        "A manifest that was changed is not believed.",
        "eo_pipeline/staging/manifest.py",
        "        if raw.get(_HASH, _hash(raw)) != _hash(raw):\n",
        "        if False:\n",
        (f"{_STAGING}::test_a_damaged_manifest_is_an_error_that_names_it_and_can_be_set_aside",),
    ),
    Mutant(
        "deleted-manifest-first",
        "Of an attempt that is deleted the manifest goes first.",
        "eo_pipeline/staging/attempt.py",
        "        (self.folder / MANIFEST).unlink(missing_ok=True)\n",
        "",
        (
            "tests/staging/test_leaving_nothing.py::"
            "test_a_kill_between_two_removals_leaves_what_the_next_one_finds",
        ),
    ),
    # the ledger's chain
    Mutant(
        "seal",
        "An entry whose content does not fit its hash is damage.",
        "eo_pipeline/ledger/history.py",
        "        if entry.is_altered:\n",
        "        if False:\n",
        (f"{_CHAIN}::test_a_changed_entry_is_named",),
    ),
    Mutant(
        "chain-parent",
        "An entry that is not a child of the one before it is damage.",
        "eo_pipeline/ledger/history.py",
        "        elif before is not None and not entry.is_child_of(before):\n",
        "        elif False:\n",
        (f"{_CHAIN}::test_a_changed_entry_with_a_fitting_hash_is_named_by_its_child",),
    ),
    Mutant(
        "chain-gap",
        "A version that is missing in the ledger is damage.",
        "eo_pipeline/ledger/history.py",
        "        if entry.version > expected:\n",
        "        if False:\n",
        (f"{_CHAIN}::test_a_missing_entry_is_named",),
    ),
    Mutant(
        "head-is-verified",
        "Every run compares the head with its parent before it builds on it.",
        "eo_pipeline/sinks/session.py",
        "            verify_head(head, self.entry(head.parent.version) if head.parent else None)\n",
        "            pass\n",
        (f"{_CONTRACT}::test_a_head_that_was_changed_is_not_built_upon",),
    ),
    Mutant(
        "rows-without-ledger",
        "A table with rows of checkpoints and no ledger is refused.",
        "eo_pipeline/sinks/session.py",
        "        refuse_rows_without_ledger(self.pipeline, head, self.was_written, self.entry)\n",
        "",
        (f"{_CONTRACT}::test_rows_without_a_ledger_are_not_doubled_by_beginning_anew",),
    ),
    Mutant(
        "another-table",
        "A table that was dropped and made anew is not the ledger's table.",
        "eo_pipeline/sinks/session.py",
        "        refuse_another_table(head, self.table_identity())\n",
        "",
        (f"{_CONTRACT}::test_a_table_made_anew_is_another",),
    ),
)
