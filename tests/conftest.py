"""Fixtures live in plugins, one file a server family."""

from __future__ import annotations

pytest_plugins = ["tests.servers", "tests.stores", "tests.engine"]
