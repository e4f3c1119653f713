"""Rows that wait, invisible, and the promise to commit them."""
