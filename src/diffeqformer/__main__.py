"""`python -m diffeqformer`"""

import sys

from diffeqformer.cli import main

sys.exit(main())
