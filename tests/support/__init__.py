"""Servers, fixtures and helpers that tests share."""
