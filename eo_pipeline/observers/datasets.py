"""What OpenLineage calls a topic and a table: its naming specification, applied to our sinks.

https://openlineage.io/docs/spec/naming
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from eo_pipeline.sinks.config import Sink


class Name(NamedTuple):
    """A dataset's name, and whose name it is."""

    namespace: str
    name: str


def topic_name(bootstrap_servers: str, topic: str) -> Name:
    """Of a topic: its cluster is named by the first broker."""
    host, _, port = bootstrap_servers.split(",")[0].strip().rpartition(":")
    return Name(f"kafka://{host}:{port}" if host else f"kafka://{port}:9092", topic)


def written_name(sink: Sink) -> Name:
    """Of what ``sink`` writes. A kind of store that is not known here is named by its own words."""
    said = sink.describe()
    kind, host = said["kind"], f"{said.get('host')}:{said.get('port')}"
    if kind == "postgres":
        return Name(f"postgres://{host}", sink.qualified_name)
    if kind in ("mysql", "mariadb"):
        return Name(f"mysql://{host}", sink.qualified_name)
    if kind == "kafka":
        return topic_name(said["bootstrap_servers"], said["table"])
    if kind == "redis":
        return Name(f"redis://{host}", f"{said['database']}.{said['table']}")
    if "uri" in said:
        place = urlsplit(said["uri"])
        if place.scheme == "file":
            return Name("file", unquote(place.path))
        return Name(f"{place.scheme}://{place.netloc}", unquote(place.path).strip("/"))
    return Name(kind, sink.qualified_name)
