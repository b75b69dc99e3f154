"""Runs every case of the scenes with cut connections and killed processes: `python -m tests.faults.cut [--only TEXT] [ARGUMENTS]`.

Invariant: nothing is left out; without this module a run chooses some cases by a seed.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

from tests.faults.cut.choice import ONLY, SEED, WHOLE, chosen


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.cut", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", default="1", help="of the delays that are random also here")
    parser.add_argument("--only", default="", help="runs the cases whose names contain one of these texts, separated by commas")
    options, rest = parser.parse_known_args()
    os.environ |= {SEED: options.seed, WHOLE: "1", ONLY: options.only}
    code = int(pytest.main(["-s", "--timeout=0", str(Path(__file__).parent), *rest]))
    if options.only and not chosen:
        print(f"error: --only {options.only}: no case of the scenes that ran has such a name", file=sys.stderr)
        return code or 2
    return code


if __name__ == "__main__":
    sys.exit(main())
