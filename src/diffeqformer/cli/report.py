"""`diffeqformer report compare RUN_A RUN_B [--to DIR]`"""

from diffeqformer.cli.study import Verb

CHOICE = Verb(
    "report",
    "Put runs side by side: numbers, figures, and a page to read.",
    ("report", "reports"),
    {"compare": "two runs side by side, task by task, with p-values"},
    "report compare runs/quickstart/diffeqformer runs/quickstart/gpt",
)
run = CHOICE.run
