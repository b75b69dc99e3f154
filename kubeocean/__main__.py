"""`python -m kubeocean`.

Invariant: the same as the console script.
"""

from kubeocean.cli import main

main()
