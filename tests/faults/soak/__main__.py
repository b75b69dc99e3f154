"""Runs the soak for longer: `python -m tests.faults.soak [--minutes 30] [--rate 20] [--seed N] [ARGUMENTS OF PYTEST]`.

Invariant: it is the same test; only its length and the seed of its faults differ.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

from tests.faults.soak.churn import MINUTES, PODS_A_SECOND, RATE, SEED


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=PODS_A_SECOND, help="pods a second")
    parser.add_argument("--seed", default="1", help="of the faults")
    options, rest = parser.parse_known_args()
    os.environ |= {MINUTES: f"{options.minutes:g}", RATE: f"{options.rate:g}", SEED: options.seed}
    return int(pytest.main(["-s", "--timeout=0", str(Path(__file__).parent), *rest]))


if __name__ == "__main__":
    sys.exit(main())
