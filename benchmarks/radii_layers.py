"""Are radii what is promised?  python benchmarks/radii_layers.py [--layers 900] [--start 0]
[--gradient] [--no-results]

More than 10,000 points of random layers, the same as in tests/stability/test_promise.py, each against
LAPACK in float64. Prints a table by families and the worst points; writes results/radii_layers.json
and .md. Set OMP_NUM_THREADS=1: small eigenvalue problems are many times slower with more threads.
Two or three minutes of one core.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the layers are those of the tests

from tests.stability.promise import main

if __name__ == "__main__":
    main()
