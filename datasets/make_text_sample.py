"""Make the sample of a text in neurolsc/datasets/samples/text.

    python make_text_sample.py ALICE OUT

ALICE is Project Gutenberg's plain text of "Alice's Adventures in Wonderland" (number 11, such as
alice29.txt), OUT the folder to write into. The recipe takes chapters I and II for training, and the
two halves of chapter III, cut between sentences, for validation and test. What it keeps are the
words, in lower case and without punctuation, one sentence a line.
"""

import argparse
import hashlib
import re
from pathlib import Path


def sentences(chapter: str) -> list[str]:
    """The sentences of a chapter, a line each."""
    body = chapter.partition("\n\n\n")[2]  # behind the title
    parts = re.split(r"(?<=[.!?])['`\")]*\s+|\n\s*\n", body.lower())
    lines = [" ".join(re.findall(r"[a-z]+(?:'[a-z]+)*", part)) for part in parts]
    return [line for line in lines if line]


def main() -> None:
    """Read, cut, write, and print the lines of the card."""
    parser = argparse.ArgumentParser(description="Make a small text of three chapters.")
    parser.add_argument("alice", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    text = arguments.alice.read_text(encoding="ascii")
    one, two, three = map(sentences, re.split(r"\n\s*CHAPTER [IVX]+\b", text)[1:4])
    half = len(three) // 2
    for name, lines in (("train", one + two), ("validation", three[:half]), ("test", three[half:])):
        content = "".join(f"{line}\n" for line in lines).encode()
        (arguments.out / f"{name}.txt").write_bytes(content)
        words = content.decode().split()
        print(f"| {name}.txt | {len(words)} words, {len(lines)} lines | {hashlib.sha256(content).hexdigest()} |")


if __name__ == "__main__":
    main()
