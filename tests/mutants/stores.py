"""What breaks a store's part of the promise."""

from __future__ import annotations

from tests.mutants import Mutant

_UPSERT = "tests/sinks/sql/test_sql_upsert.py::TestUpsert"
_POSTGRES = "tests/sinks/postgres/test_postgres_failures.py::TestServer"
_SQL = "eo_pipeline/sinks/sql"

MUTANTS = (
    Mutant(
        "store-counts",
        "The rows that a table with triggers holds afterwards are counted by the database.",
        f"{_SQL}/session.py",
        "    if (added := count(table, mine) - before) != staged.rows:\n",
        "    if (added := count(table, mine) - before) < 0:\n",
        (
            "tests/sinks/postgres/test_postgres_counts.py::TestInsert::"
            "test_rows_that_a_trigger_takes_are_missed",
        ),
    ),
    Mutant(
        "store-took-all",
        "The number of rows that the database says it took is compared.",
        f"{_SQL}/session.py",
        "    if inserted != staged.rows and not acts:\n",
        "    if False:\n",
        (
            "tests/sinks/postgres/test_postgres_counts.py::TestInsert::"
            "test_another_number_than_the_database_says_it_took_is_missed",
        ),
    ),
    Mutant(
        "database-keeps-the-step",
        "The database itself takes only the version after the parent's.",
        f"{_SQL}/ledger.py",
        "            AND version = parent_version + 1))\n",
        "            AND version > parent_version))\n",
        (
            "tests/sinks/sql/test_sql_ledger.py::TestLedger::"
            "test_the_database_itself_takes_only_the_next_version[postgres-2-0-'0'-eo_ledger_step]",
        ),
    ),
    Mutant(
        "one-transaction-a-version",
        "The database itself lets one transaction take a version.",
        f"{_SQL}/ledger.py",
        'LEDGER_KEY = ("pipeline", "version")\n',
        'LEDGER_KEY = ("pipeline", "version", "transaction_id", "ledger_id")\n',
        (
            "tests/sinks/postgres/test_postgres_contract.py::TestAppend::"
            "test_of_two_runs_at_once_only_the_winners_rows_are_there",
        ),
    ),
    Mutant(
        "parent-is-asked-for",
        "The entry goes in only if its parent, by transaction id, is there.",
        f"{_SQL}/ledger.py",
        'AND transaction_id = {self.mark}"',
        "AND transaction_id <> '' AND {self.mark}::text <> ''\"",
        (
            "tests/sinks/sql/test_sql_ledger.py::TestLedger::"
            "test_a_parent_that_is_another_by_now_is_fenced_by_the_commit[postgres-False]",
        ),
    ),
    Mutant(
        "entry-in-the-rows-transaction",
        "The ledger entry goes into the transaction of the rows or nowhere.",
        f"{_SQL}/session.py",
        "    def enter(self) -> None:\n        self.store.check_in_transaction()\n",
        "    def enter(self) -> None:\n",
        (
            "tests/sinks/sql/test_sql_failures.py::TestServer::"
            "test_an_entry_never_lands_alone_after_the_server_ended_the_transaction[postgres]",
        ),
    ),
    Mutant(
        "commit-is-answered",
        "A COMMIT that the server answers by ROLLBACK is no commit.",
        "eo_pipeline/sinks/postgres/connection.py",
        '        if tag != "COMMIT":\n',
        "        if False:\n",
        (f"{_POSTGRES}::test_a_commit_that_the_server_answers_by_a_rollback_is_none",),
    ),
    Mutant(
        "lock-timeout",
        "A PostgreSQL transaction waits for a lock no longer than sink.lock_timeout.",
        "eo_pipeline/sinks/postgres/connection.py",
        "        self.execute(_LIMITS, lock, lock, whole)\n",
        '        self.execute(_LIMITS, "0", lock, whole)\n',
        (
            f"{_POSTGRES}::"
            "test_what_a_transaction_may_hold_up_is_bounded_and_what_it_commits_is_durable",
        ),
    ),
    Mutant(
        "durable-commit",
        "A PostgreSQL commit is durable although the server's default is synchronous_commit=off.",
        "eo_pipeline/sinks/postgres/connection.py",
        "WHEN 'off' THEN 'on'",
        "WHEN 'off' THEN 'off'",
        (
            f"{_POSTGRES}::"
            "test_what_a_transaction_may_hold_up_is_bounded_and_what_it_commits_is_durable",
        ),
    ),
    Mutant(
        "rewind-takes-what-came-after",
        "A rewind takes the rows of later checkpoints and no others.",
        f"{_SQL}/session.py",
        '    operator = ">" if entry.operation is Operation.REWIND else "="\n',
        '    operator = ">=" if entry.operation is Operation.REWIND else "="\n',
        (
            "tests/sinks/postgres/test_postgres_contract.py::TestAppend::"
            "test_a_rewind_takes_exactly_what_came_after",
        ),
    ),
    Mutant(
        "replay-takes-its-checkpoint",
        "A replay takes back the rows of its checkpoint and no others.",
        f"{_SQL}/session.py",
        '    operator = ">" if entry.operation is Operation.REWIND else "="\n',
        '    operator = ">"\n',
        (
            "tests/sinks/postgres/test_postgres_contract.py::TestAppend::"
            "test_a_replay_replaces_exactly_its_checkpoint",
        ),
    ),
    Mutant(
        "dead-letters-go-back",
        "A rewind or a replay takes back the dead letters of the checkpoints whose rows it takes.",
        f"{_SQL}/session.py",
        "in (self.session.table, self.session.dead_letters):\n                delete(",
        "in (self.session.table,):\n                delete(",
        (
            "tests/sinks/postgres/test_postgres_contract.py::TestAppend::"
            "test_dead_letters_go_back_with_the_rows",
        ),
    ),
    Mutant(
        "upsert-newest-staged",
        "Of the staged rows of one key the one with the greatest sequence is written.",
        f"{_SQL}/table.py",
        '{quoted(name)} DESC" for name in rule.age_columns(columns)',
        '{quoted(name)} ASC" for name in rule.age_columns(columns)',
        (f"{_UPSERT}::test_the_newest_of_one_checkpoint_wins_whatever_its_place[postgres]",),
    ),
    Mutant(
        "upsert-older-changes-nothing",
        "A row that is older than the one in the table changes nothing.",
        f"{_SQL}/table.py",
        "    return f\"({', '.join(mine)}) <= ({', '.join(theirs)}) OR {unknown}\"\n",
        '    return "true"\n',
        (f"{_UPSERT}::test_an_older_row_that_comes_late_changes_nothing[postgres]",),
    ),
    # lakes
    Mutant(
        "delta-no-retries",
        "delta-rs does not retry a commit: it would follow a commit that fenced us.",
        "eo_pipeline/sinks/delta/commit.py",
        "            custom_metadata=commit_metadata(entry, metadata),\n"
        "            max_commit_retries=0,\n",
        "            custom_metadata=commit_metadata(entry, metadata),\n"
        "            max_commit_retries=9,\n",
        ("tests/sinks/delta/test_delta_sink.py::test_delta_rs_retries_no_commit_of_ours",),
    ),
    Mutant(
        "iceberg-no-retries",
        "PyIceberg does not retry a commit.",
        "eo_pipeline/sinks/iceberg/table.py",
        'NO_RETRIES = {TableProperties.COMMIT_NUM_RETRIES: "0"}\n',
        'NO_RETRIES = {TableProperties.COMMIT_NUM_RETRIES: "4"}\n',
        ("tests/sinks/iceberg/test_iceberg_sink.py::TestOtherWriters",),
    ),
    Mutant(
        "delta-vacuum",
        "Maintenance of a Delta table never removes what a live run has staged.",
        "eo_pipeline/sinks/delta/maintenance.py",
        "            return head is None or int(match[2]) > head\n",
        "            return False\n",
        (
            "tests/sinks/delta/test_delta_maintain.py::"
            "test_what_a_live_run_has_staged_is_never_removed",
        ),
    ),
    Mutant(
        "iceberg-orphans",
        "Maintenance of an Iceberg table never removes what a live run has staged.",
        "eo_pipeline/sinks/iceberg/maintenance.py",
        "        return head is not None and int(match[2]) <= head.version\n",
        "        return True\n",
        (
            "tests/sinks/iceberg/test_iceberg_maintain.py::"
            "test_what_a_live_run_has_staged_is_never_removed",
        ),
    ),
    Mutant(
        "iceberg-rest-race",
        "A REST catalog that commits one table after another fills no several tables.",
        "eo_pipeline/sinks/iceberg/rest.py",
        "(self._fault_of_race(committers) for committers in _ROUNDS)",
        "(self._fault_of_race(committers) for committers in ())",
        (
            "tests/tables/test_iceberg_rest_tables.py::TestRefused::"
            "test_a_catalog_that_commits_one_table_after_another",
        ),
        only_slow="needs a REST catalog",
    ),
    Mutant(
        "iceberg-rest-bare",
        "A table without a snapshot gets one before it is compared with.",
        "eo_pipeline/sinks/iceberg/rest.py",
        "if t._table.metadata.current_snapshot_id is None]",
        "if t._table.metadata.current_snapshot_id == 0]",
        (
            "tests/tables/test_iceberg_rest_tables.py::TestByNessie::"
            "test_a_strangers_commit_to_one_table_refuses_all_and_the_next_try_has_both",
        ),
        only_slow="needs Nessie",
    ),
    Mutant(
        "iceberg-rest-together",
        "A REST catalog commits all tables of a checkpoint by one request.",
        "eo_pipeline/sinks/iceberg/rest.py",
        "        again(PatientRestCatalog._commit_transaction, self, changes)\n",
        "        for change in changes:\n"
        "            again(PatientRestCatalog._commit_transaction, self, [change])\n",
        (
            "tests/tables/test_iceberg_rest_tables.py::TestByNessie::"
            "test_a_strangers_commit_to_one_table_refuses_all_and_the_next_try_has_both",
        ),
        only_slow="needs Nessie",
    ),
    Mutant(
        "lake-own-commit",
        "A lake's commit that was refused by what it had made itself is a commit.",
        "eo_pipeline/sinks/lake/session.py",
        "            has_landed, self._is_known = self.landed() is not None, True\n",
        "            has_landed, self._is_known = False, True\n",
        ("tests/sinks/iceberg/test_iceberg_sink.py::TestOutcomes",),
    ),
    # Kafka
    Mutant(
        "kafka-fences",
        "All runs of a pipeline have one transactional id: the newer shuts out the older.",
        "eo_pipeline/sinks/kafka/transactions.py",
        '"transactional.id": sink.transactional_id(pipeline, shard),',
        '"transactional.id": f"{sink.transactional_id(pipeline, shard)}-{id(self)}",',
        (
            "tests/sinks/kafka/test_kafka_sink.py::"
            "test_a_zombie_that_was_fenced_asks_the_ledger_who_won",
        ),
    ),
    Mutant(
        "kafka-compares-the-head",
        "A Kafka publication compares the ledger's head with the parent once others are shut out.",
        "eo_pipeline/sinks/kafka/session.py",
        "        refuse_unless_child(entry, newest.entry if newest else None)\n",
        "",
        (
            "tests/sinks/kafka/test_kafka_sink_contract.py::TestExactlyOnce::"
            "test_a_number_alone_does_not_match",
        ),
    ),
    Mutant(
        "kafka-reads-to-the-end",
        "The ledger's topic is read to its end, however many aborted records are there.",
        "eo_pipeline/sinks/kafka/ledger.py",
        "            size *= 4\n",
        "            return []\n",
        (
            "tests/sinks/kafka/test_kafka_sink_ledger.py::"
            "test_the_head_is_found_behind_many_aborted_ones",
        ),
        only_slow="a ledger topic of that length takes seconds to write",
    ),
    Mutant(
        "kafka-reads-committed",
        "Of the ledger's topic only committed records count.",
        "eo_pipeline/sinks/kafka/ledger.py",
        '    "isolation.level": "read_committed",\n',
        '    "isolation.level": "read_uncommitted",\n',
        (
            "tests/sinks/kafka/test_kafka_sink_ledger.py::"
            "test_an_entry_is_found_in_a_long_ledger_with_holes",
        ),
        only_slow="a ledger topic of that length takes seconds to write",
    ),
    Mutant(
        "kafka-emptied-ledger",
        "A ledger topic whose records were deleted is not a new one.",
        "eo_pipeline/sinks/kafka/ledger.py",
        "        if beginning > 0:\n",
        "        if False:\n",
        (
            "tests/sinks/kafka/test_kafka_sink_ledger.py::"
            "test_a_ledger_that_was_emptied_is_not_a_new_one",
        ),
    ),
    # stores that the first tier has not
    Mutant(
        "mysql-tables-first",
        "MySQL's tables are made before the transaction: CREATE TABLE would commit what is open.",
        "eo_pipeline/sinks/mysql/connection.py",
        "    has_ddl_in_transactions = False\n",
        "    has_ddl_in_transactions = True\n",
        (
            "tests/sinks/mysql/test_mysql_contract.py::TestAppend::"
            "test_an_abort_leaves_nothing_and_a_retry_lands_once",
        ),
        only_slow="the rule is MySQL's own",
    ),
    Mutant(
        "redis-tries-first",
        "The script of Redis tries every type and permission before its first write.",
        "eo_pipeline/sinks/redis/session.py",
        "found = found or obstacle(key, t.form, t.ttl) or moved(key, t.form, t.origins[i])\n",
        "found = found or moved(key, t.form, t.origins[i])\n",
        (
            "tests/sinks/redis/test_redis_sink.py::TestRefused::test_a_key_that_holds_something_else",
        ),
        only_slow="the rule is a script that a Redis server runs",
    ),
    Mutant(
        "redis-tries-all-tables",
        "The script of Redis tries what it writes to all tables before its first write.",
        "eo_pipeline/sinks/redis/session.py",
        "  found = refusal(t)\n",
        "  found = t == tables[1] and refusal(t)\n",
        (
            "tests/tables/test_tables_contract.py::TestRedis::"
            "test_what_the_last_table_refuses_is_written_to_none",
        ),
        only_slow="the rule is a script that a Redis server runs",
    ),
    Mutant(
        "redis-compares-the-head",
        "The script of Redis writes nothing unless the head is the parent.",
        "eo_pipeline/sinks/redis/session.py",
        "if (redis.call('HGET', ledger, 'head') or '') ~= parent then\n",
        "if false then\n",
        (
            "tests/sinks/redis/test_redis_sink.py::TestRefused::"
            "test_a_head_that_moved_while_rows_were_prepared",
        ),
        only_slow="the rule is a script that a Redis server runs",
    ),
)
