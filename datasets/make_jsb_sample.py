"""Make the sample of JSB Chorales in neurolsc/datasets/samples/jsb.

    python make_jsb_sample.py JSB OUT

JSB is the folder of jsb-chorales-quarter.json (downloaded if it is missing), OUT the folder to
write into. The recipe draws 60 training, 16 validation and 16 test chorales, leaves them in the
file's order and changes no note. The result is one JSON file in the same layout, gzipped without
name or time, so that the same zlib writes the same bytes.
"""

import argparse
import gzip
import hashlib
import json
from pathlib import Path

import numpy as np

from neurolsc.datasets.download import fetch

SEED = 0
PIECES = {"train": 60, "valid": 16, "test": 16}
NAME = "jsb-chorales-sample.json.gz"


def main() -> None:
    """Read, draw, write, and print the line of the card."""
    parser = argparse.ArgumentParser(description="Draw a small sample of JSB Chorales.")
    parser.add_argument("jsb", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    pieces = json.loads(fetch(arguments.jsb, "jsb-chorales-quarter.json").read_text(encoding="utf-8"))
    random = np.random.RandomState(SEED)
    drawn = {part: np.sort(random.choice(len(pieces[part]), count, replace=False)) for part, count in PIECES.items()}
    sample = {part: [pieces[part][i] for i in chosen] for part, chosen in drawn.items()}
    contents = json.dumps(sample, separators=(",", ":")).encode()
    path = arguments.out / NAME
    with path.open("wb") as file, gzip.GzipFile("", "wb", compresslevel=9, fileobj=file, mtime=0) as packed:
        packed.write(contents)
    print({part: [(int(i), len(pieces[part][i])) for i in chosen] for part, chosen in drawn.items()})
    print(f"| {NAME} | {path.stat().st_size} | {hashlib.sha256(contents).hexdigest()} |")


if __name__ == "__main__":
    main()
