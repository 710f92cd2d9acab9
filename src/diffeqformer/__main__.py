"""`python -m diffeqformer`"""

from diffeqformer.cli.program import program

program()
