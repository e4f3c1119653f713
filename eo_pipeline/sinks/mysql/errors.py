"""Meaning of MySQL's and MariaDB's errors for a checkpoint.

They are told by their numbers, those of the MySQL Server Error Reference and MariaDB's list of
error codes; where they differ both are named.
"""

from __future__ import annotations

import pymysql

from eo_pipeline.sinks.sql.connection import Diagnosis

#: Numbers that say nothing against the rows: the same transaction may succeed later.
_LATER = frozenset(
    {
        0, 2002, 2003, 2006, 2013, 2014, 2055,  # the connection, seen from here
        1042, 1043, 1047, 1053, 1129, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 4031,  # and there
        1021, 1026, 1030, 1114, 1180, 1878,  # disk full, temporary files, storage engine
        1037, 1038, 1040, 1041, 1135, 1203, 1226, 5,  # memory, connections, threads, limits
        1205, 1206, 1213, 3572,  # locks
        1290, 1792, 1836,  # no writes here: a replica
        1317, 1969, 3024,  # cancelled by a person or by a timeout
        1412, 1615, 3101,  # the table changed meanwhile; the cluster rolled it back
    }
)  # fmt: skip

_REMEDIES = {
    1021: "Free disk space on the database server.",
    1114: "Free disk space on the database server, or let its tablespace grow.",
    1040: "Raise max_connections, or close connections.",
    1203: "Raise max_user_connections, or close connections.",
    1205: "Another transaction holds a lock longer than sink.lock_timeout; SHOW ENGINE INNODB "
    "STATUS and SHOW PROCESSLIST show which.",
    1290: "This server takes no writes: it is a replica, or set to read-only.",
    1836: "This server takes no writes: it is set to read-only.",
    1792: "Transactions are read-only for this user or server.",
    1044: "GRANT the user what it lacks.",
    1142: "GRANT the user what it lacks.",
    1143: "GRANT the user what it lacks.",
    1227: "GRANT the user what it lacks.",
    1370: "GRANT the user what it lacks.",
    1665: "Set binlog_format to MIXED or ROW.",
    1153: "Raise max_allowed_packet on the server.",
    1301: "Raise max_allowed_packet on the server.",
    1062: "Filter or repair the rows in the transform, or change the constraint.",
    1048: "Filter or repair the rows in the transform, or change the constraint.",
    1364: "Give the column a default, or write it in the transform.",
    1452: "Filter or repair the rows in the transform, or change the constraint.",
    3819: "Filter or repair the rows in the transform, or change the constraint.",
    4025: "Filter or repair the rows in the transform, or change the constraint.",
    1264: "Correct the values in the transform, or widen the column.",
    1265: "Correct the values in the transform, or widen the column.",
    1406: "Correct the values in the transform, or widen the column.",
    1366: "Correct the values in the transform, or widen the column.",
    1526: "Add the missing partition to the table.",
}


def number_of(error: pymysql.MySQLError) -> int | None:
    """The number the server, or the driver, gave to ``error``."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else None


def diagnosis_of(error: pymysql.MySQLError) -> Diagnosis:
    """Return the meaning of ``error``."""
    return diagnosis(number_of(error), str(error.args[1] if len(error.args) > 1 else error))


def diagnosis(number: int | None, message: str) -> Diagnosis:
    """Return the meaning of an error or a warning."""
    message = " ".join(message.split()) or "the connection was lost"
    says = f"{message} (error {number})" if number else message
    return Diagnosis(says, number in _LATER, _REMEDIES.get(number or -1, ""))
