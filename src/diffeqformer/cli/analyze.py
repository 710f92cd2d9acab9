"""`diffeqformer analyze [NAME ...]`."""

from diffeqformer.cli.study import STUDIES

CHOICE = STUDIES["analyze"]
run = CHOICE.run
