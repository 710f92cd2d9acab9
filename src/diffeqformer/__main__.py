"""`python -m diffeqformer`"""

from diffeqformer.program import program

program()
