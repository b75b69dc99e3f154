"""`python -m vkubelet` is `vkubelet`.

Invariant: nothing but the call.
"""

from vkubelet.cli import main

if __name__ == "__main__":
    main()
