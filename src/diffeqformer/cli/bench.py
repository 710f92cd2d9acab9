"""`diffeqformer bench [NAME ...]`."""

from diffeqformer.cli.study import STUDIES

CHOICE = STUDIES["bench"]
run = CHOICE.run
