"""`make fuzz`: damaged files for every reader, and the table of how they ended."""

import argparse
import sys

from tests.fuzz.table import lines, make

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--cases", type=int, default=10**9, help="files for each reader")
parser.add_argument("--seconds", type=float, default=float("inf"), help="for all readers together")
parser.add_argument("--seed", type=int, default=0, help="of the first file")
parser.add_argument("--only", default="", help="how the names of the readers begin")
given = parser.parse_args()
rows = make(given.cases, seed=given.seed, seconds=given.seconds, only=given.only)
print("\n".join(lines(rows)))
for row in rows:
    for odd in row.odd:
        print(odd)
sys.exit(any(row.bad for row in rows))
