"""Looking inside a model: pure functions of a model and tokens.

A result is a frozen dataclass: `arrays()` gives all of its numbers by name, and a notebook shows it as a table.
"""
