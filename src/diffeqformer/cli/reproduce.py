"""`diffeqformer reproduce [NAME ...]`."""

from diffeqformer.cli.study import STUDIES

CHOICE = STUDIES["reproduce"]
run = CHOICE.run
