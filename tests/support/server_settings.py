"""Settings that services set on the databases that they rent out: names and values."""

from __future__ import annotations

import random
from collections.abc import Sequence

#: A name, and a value as SQL writes it.
Setting = tuple[str, str]

POSTGRES: list[Setting] = [
    ("DateStyle", "SQL, DMY"),
    ("IntervalStyle", "iso_8601"),
    ("TimeZone", "Asia/Kathmandu"),
    ("timezone_abbreviations", "India"),
    ("extra_float_digits", "-15"),
    ("bytea_output", "escape"),
    ("standard_conforming_strings", "off"),
    ("escape_string_warning", "on"),
    ("backslash_quote", "off"),
    ("client_encoding", "LATIN1"),
    ("client_min_messages", "debug1"),
    ("row_security", "off"),
    ("array_nulls", "off"),
    ("transform_null_equals", "on"),
    ("quote_all_identifiers", "on"),
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_deferrable", "on"),
    ("synchronous_commit", "off"),
    ("lock_timeout", "2s"),
    ("statement_timeout", "30s"),
    ("idle_in_transaction_session_timeout", "5s"),
    ("idle_session_timeout", "30s"),
    ("transaction_timeout", "30s"),
    ("deadlock_timeout", "10ms"),
    ("session_replication_role", "replica"),
    ("check_function_bodies", "off"),
    ("default_toast_compression", "pglz"),
    ("xmloption", "document"),
    ("jit_above_cost", "0"),
    ("debug_parallel_query", "on"),
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_indexscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("join_collapse_limit", "1"),
    ("constraint_exclusion", "on"),
    ("work_mem", "64kB"),
    ("maintenance_work_mem", "1MB"),
    ("temp_buffers", "800kB"),
    ("cursor_tuple_fraction", "1.0"),
    ("commit_delay", "1000"),
    ("track_activities", "off"),
    ("log_statement", "all"),
    ("search_path", '"$user", public, pg_catalog'),
]

MYSQL: list[Setting] = [
    ("sql_require_primary_key", "ON"),
    ("innodb_force_primary_key", "ON"),
    ("sql_generate_invisible_primary_key", "ON"),
    ("sql_select_limit", "100"),
    ("sql_big_selects", "OFF"),
    ("max_join_size", "10"),
    ("sql_safe_updates", "ON"),
    ("sql_auto_is_null", "ON"),
    ("sql_mode", "''"),
    ("sql_mode", "'ANSI,TRADITIONAL'"),
    ("sql_mode", "'NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,HIGH_NOT_PRECEDENCE'"),
    ("sql_mode", "'NO_UNSIGNED_SUBTRACTION,PAD_CHAR_TO_FULL_LENGTH'"),
    ("time_zone", "'+05:45'"),
    ("autocommit", "OFF"),
    ("completion_type", "'CHAIN'"),
    ("transaction_isolation", "'SERIALIZABLE'"),
    ("tx_isolation", "'SERIALIZABLE'"),
    ("foreign_key_checks", "OFF"),
    ("unique_checks", "OFF"),
    ("character_set_server", "latin1"),
    ("collation_connection", "utf8mb4_bin"),
    ("collation_server", "utf8mb4_general_ci"),
    ("default_storage_engine", "MEMORY"),
    ("default_tmp_storage_engine", "MEMORY"),
    ("innodb_strict_mode", "OFF"),
    ("innodb_lock_wait_timeout", "1"),
    ("lock_wait_timeout", "2"),
    ("max_statement_time", "0.001"),
    ("max_execution_time", "1"),
    ("wait_timeout", "5"),
    ("interactive_timeout", "5"),
    ("net_read_timeout", "5"),
    ("net_write_timeout", "5"),
    ("max_allowed_packet", "4194304"),
    ("max_error_count", "0"),
    ("local_infile", "OFF"),
    ("div_precision_increment", "0"),
    ("low_priority_updates", "ON"),
    ("big_tables", "ON"),
    ("tmp_table_size", "1024"),
    ("max_heap_table_size", "16384"),
    ("sort_buffer_size", "32768"),
    ("group_concat_max_len", "4"),
    ("binlog_format", "'ROW'"),
    ("sql_notes", "OFF"),
    ("sql_warnings", "ON"),
    ("sql_quote_show_create", "OFF"),
    ("explicit_defaults_for_timestamp", "OFF"),
    ("lc_time_names", "'de_DE'"),
    ("old_alter_table", "ON"),
    ("alter_algorithm", "'COPY'"),
    ("optimizer_switch", "'materialization=off,semijoin=off'"),
]

#: Errors of a server that does not know a setting, or with which it cannot be set.
NOT_THERE = {1193, 1231, 1238, 1286, 3567}


def in_database(database: str, name: str, value: str) -> str:
    """Give the statement that sets ``name`` for each new connection to a PostgreSQL database."""
    quoted = value if value.startswith('"') else f"'{value}'"
    return f'ALTER DATABASE "{database}" SET {name} = {quoted}'


def drawn(settings: Sequence[Setting], seed: str) -> list[Setting]:
    """Draw settings for a life: none for every second one, else five of different names."""
    chance = random.Random(f"{seed}/settings")
    if chance.random() < 0.5:
        return []
    return list(dict(chance.sample(settings, 5)).items())
