"""`python -m fleet`.

Invariant: the same as the console script.
"""

from fleet.cli import main

main()
