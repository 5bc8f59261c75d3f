"""What do readers do with damaged files, and what do bombs take?  python benchmarks/fuzz.py

900 damaged files for each reader of `tests/fuzz` (bits, bytes, fields, objects of HDF5, JSON under
a right checksum), each read in a process with limits on time and memory, and every bomb there.
Linux only, one core. Writes results/fuzz.json and .md.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests

import h5py
import torch

from tests.fuzz import bombs, table

RESULTS = Path(__file__).parent / "results"

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=900, help="files for each reader")
    parser.add_argument("--seed", type=int, default=0, help="of the first file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    rows = table.make(given.cases, seed=given.seed)
    blown = bombs.blow(bombs.BOMBS)
    about = {"date": time.strftime("%Y-%m-%d"), "seed": given.seed, "torch": torch.__version__}
    about |= {"h5py": h5py.__version__, "HDF5": h5py.version.hdf5_version}
    about |= {"core_seconds": round(time.process_time() - started)}
    found = {"about": about, "readers": [row.to_dict() for row in rows], "bombs": [b._asdict() for b in blown]}
    (RESULTS / "fuzz.json").write_text(json.dumps(found, indent=1) + "\n")
    (RESULTS / "fuzz.md").write_text("\n".join([*table.lines(rows), "", *bombs.lines(blown)]) + "\n")
    print((RESULTS / "fuzz.md").read_text())
