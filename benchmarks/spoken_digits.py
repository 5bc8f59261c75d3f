"""Does setting the radius help ALIF+ learn spoken digits, and is it the radius that helps?

    python benchmarks/spoken_digits.py [--digits FOLDER] [--by random | speaker] [--cell ALIFPlus] [--layers 2]
                                       [--epochs 12] [--lr 0.01] [--seeds 4] [--workers 2]

The data are synthetic spoken digits in SHD's layout, and no figure here is one on SHD. 2 x 256 ALIF+, 50 bins of 20 ms, 140
channels; validation is carved from the training file, at random or by speaker; arms and controls as _arms.py tells. The test
utterances are scored together, and those of the two voices that are in no training utterance apart. Logistic regression on
the counts in ten time bins reaches 88.5 %. Writes results/spoken_digits.json, .md and .png.
"""

import os
from dataclasses import dataclass

import _arms as arms
from torch.utils.data import Subset

import neurolsc
from neurolsc.datasets import SHD

WIDTH, BATCH, LR = 256, 32, 1e-2
FORM = {"dt": 0.02, "window": 1.0, "channels": 140, "repeat": 1}
NEW_VOICES = (10, 11)


@dataclass(frozen=True)
class Where:
    """Which data and which network."""

    digits: str | None
    by: str
    cell: str
    layers: int


def load(where: Where, split: str) -> SHD:
    """One split, of the full set or of the sample in the package."""
    given = FORM | {"by": where.by}
    return SHD(where.digits, split, **given) if where.digits else SHD.embedded(split, **given)


def build(where: Where, training: SHD) -> neurolsc.Network:
    """Layers of equal width."""
    cell = getattr(neurolsc, where.cell)
    widths = [training.n_in, *[WIDTH] * where.layers]
    return neurolsc.Network([cell(below, WIDTH) for below in widths[:-1]], training.n_classes)


def voices(test: SHD) -> dict[str, Subset]:
    """The test utterances of voices that training has and has not heard."""
    new = [i for i, speaker in enumerate(test.speakers.tolist()) if speaker in NEW_VOICES]
    return {"new voices": Subset(test, new), "known voices": Subset(test, sorted(set(range(len(test))) - set(new)))}


if __name__ == "__main__":
    data = os.environ.get("NEUROLSC_DATA")
    parser = arms.arguments(__doc__.splitlines()[0], epochs=12, seeds=4, lr=LR)
    parser.add_argument(
        "--digits", default=f"{data}/spoken_digits" if data else None, help="folder of train.h5 and test.h5"
    )
    parser.add_argument("--by", choices=["random", "speaker"], default="random", help="how validation is drawn")
    parser.add_argument("--cell", choices=["ALIFPlus", "ALIFPlusMinus"], default="ALIFPlus")
    parser.add_argument("--layers", type=int, default=2)
    args = parser.parse_args()
    where = Where(args.digits, args.by, args.cell, args.layers)
    odd = [
        str(value)
        for value, usual in ((args.by, "random"), (args.cell, "ALIFPlus"), (args.layers, 2), (args.lr, LR))
        if value != usual
    ]
    name = "_".join(["spoken_digits", *odd])
    data = f"synthetic spoken digits ({'full' if args.digits else 'embedded sample'}), validation {args.by}"
    about = f"{data}, {args.layers} x {WIDTH} {args.cell}, {FORM}, lr {args.lr:g}"
    task = arms.Task(name, about, load, build, where, args.epochs, BATCH, args.lr, chance=0.05, groups=voices)
    arms.main(task, args)
