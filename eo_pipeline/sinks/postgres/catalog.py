"""What PostgreSQL's catalog is asked of a table."""

from __future__ import annotations

#: A table with its partitions and the tables that inherit from it.
TREE = """
WITH RECURSIVE tree AS (
    SELECT to_regclass(%s)::oid AS id
  UNION
    SELECT inhrelid FROM pg_inherits JOIN tree ON inhparent = tree.id
)
"""

#: Each of them: what it is, how durable, and whether this role sees all of its rows.
PARTS = f"""{TREE}
SELECT oid::regclass::text, relkind, relpersistence, row_security_active(oid)
FROM tree JOIN pg_class ON oid = id
ORDER BY oid <> to_regclass(%s)::oid, oid
"""

#: What they may do with rows that are written or deleted. A foreign key's triggers are internal.
ACTORS = f"""{TREE}
SELECT 'the trigger ' || quote_ident(tgname) || ' on ' || tgrelid::regclass
FROM tree JOIN pg_trigger ON tgrelid = id
WHERE NOT tgisinternal AND tgenabled <> 'D'
UNION
SELECT 'the rule ' || quote_ident(rulename) || ' on ' || ev_class::regclass
FROM tree JOIN pg_rewrite ON ev_class = id
WHERE ev_type <> '1' AND ev_enabled <> 'D'
UNION
SELECT 'the row-level security of ' || oid::regclass
FROM tree JOIN pg_class ON oid = id
WHERE relrowsecurity
ORDER BY 1
LIMIT 5
"""

#: What a table or a part of it may be, and what else there is.
KINDS = {"r": "", "p": "", "v": "a view", "m": "a materialized view", "f": "a foreign table"}
UNLOGGED = {"u": "an unlogged table", "t": "a temporary table"}

#: Parts from which a publication would have to tell of a deleted row, and nothing tells which row
#: that is; and whether this role may change that.
UNIDENTIFIED = f"""{TREE}
SELECT c.oid::regclass::text, pg_has_role(relowner, 'USAGE')
FROM tree JOIN pg_class c ON c.oid = id
WHERE relkind = 'r'
  AND (relreplident = 'n' OR relreplident = 'd' AND NOT EXISTS (
    SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary))
  AND EXISTS (
    SELECT FROM pg_publication_tables JOIN pg_publication USING (pubname)
    WHERE (pubdelete OR pubupdate) AND (schemaname, tablename) IN (
      SELECT nspname, relname FROM tree JOIN pg_class ON oid = id
      JOIN pg_namespace n ON n.oid = relnamespace))
"""

COMMENT_ON = """
SELECT col_description(attrelid, attnum) FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attname = %s AND NOT attisdropped
"""

#: An index on all rows that begins with the column, for a role that may read it.
FINDS = """
SELECT 1 FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
WHERE indrelid = to_regclass(%s) AND attname = %s AND indisvalid AND indpred IS NULL
  AND has_column_privilege(attrelid, attnum, 'SELECT')
"""

COLUMNS = """
WITH RECURSIVE made_of AS (
    SELECT attnum, attname, atttypid AS type, atttypmod AS modifier,
           attgenerated <> '' OR attidentity = 'a' AS computed, false AS in_domain
    FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
  UNION ALL
    SELECT attnum, attname, typbasetype, typtypmod, computed, true
    FROM made_of JOIN pg_type ON pg_type.oid = type
    WHERE typtype = 'd'
)
SELECT attname, format_type(type, NULL), quote_ident(nspname) || '.' || quote_ident(t.typname),
       coalesce(element.typcategory, t.typcategory),
       CASE WHEN modifier >= 4 AND 'numeric'::regtype IN (t.oid, element.oid)
            THEN (((modifier - 4) & 2047) # 1024) - 1024 END,
       computed,
       CASE WHEN modifier >= 4 AND 'numeric'::regtype IN (t.oid, element.oid)
            THEN ((modifier - 4) >> 16) & 65535 END,
       in_domain
FROM made_of
JOIN pg_type t ON t.oid = type
JOIN pg_namespace ON pg_namespace.oid = t.typnamespace
LEFT JOIN pg_type element ON element.oid = t.typelem AND t.typcategory = 'A'
WHERE t.typtype <> 'd'
ORDER BY attnum
"""

#: Columns that take values as they come: a domain may check, and no precision of a time rounds.
SHOWN = """
SELECT attname, format_type(atttypid, NULL),
       CASE WHEN atttypid = 'numeric'::regtype AND atttypmod >= 4
            THEN (((atttypmod - 4) & 2047) # 1024) - 1024 END
FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
  AND (atttypmod < 0 OR atttypid IN ('numeric'::regtype, 'character varying'::regtype))
ORDER BY attnum
"""

#: Columns of types that cut blanks, which would be too many, or round times.
BOUNDS = """
SELECT attname, atttypid IN ('varchar'::regtype, 'bpchar'::regtype),
       CASE WHEN atttypid IN ('varchar'::regtype, 'bpchar'::regtype)
            THEN atttypmod - 4 ELSE atttypmod END
FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
  AND (atttypid IN ('varchar'::regtype, 'bpchar'::regtype) AND atttypmod >= 4
       OR atttypid IN ('timestamp'::regtype, 'timestamptz'::regtype)
          AND atttypmod BETWEEN 0 AND 5)
"""

#: Unless a trigger (before, insert: 2 and 4) may fill them in.
NEVER_NULL = """
SELECT attname FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
  AND (attnotnull OR typnotnull) AND attgenerated = '' AND attidentity <> 'a'
  AND NOT EXISTS (
    SELECT FROM pg_trigger WHERE tgrelid = attrelid AND NOT tgisinternal AND tgtype & 6 = 6
  )
"""

#: Indexes that ON CONFLICT can use: unique, valid, checked at once, on plain columns, on all rows.
UNIQUE_KEYS = """
SELECT array_agg(attname::text)
FROM pg_index
JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey[0:indnkeyatts - 1])
WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indimmediate
  AND indpred IS NULL AND indexprs IS NULL
GROUP BY indexrelid
"""
