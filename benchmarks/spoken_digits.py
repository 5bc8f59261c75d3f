"""Does setting the radius help ALIF+ learn spoken digits, and is it the radius that helps?

    python benchmarks/spoken_digits.py [--digits FOLDER] [--by random | speaker] [--cell ALIFPlus]
                                       [--layers 2] [--epochs 12] [--lr 0.01] [--seeds 4]
                                       [--workers 2]

The data are synthetic spoken digits in SHD's layout, and no figure here is one on SHD. 2 x 256
ALIF+, 50 bins of 20 ms, 140 channels; validation is carved from the training file, at random or by
speaker; arms and controls as _arms.py tells. The test utterances are scored together, and those of
the two voices that are in no training utterance apart. Logistic regression on the counts in ten
time bins reaches 88.5 %. Writes results/spoken_digits.json, .md and .png.
"""

import os

import _arms as arms
from torch.utils.data import Subset

from neurolsc.config import DataSettings, NetworkSettings
from neurolsc.datasets import SHD
from neurolsc.experiment import Experiment

WIDTH, BATCH, LR = 256, 32, 1e-2
FORM = {"dt": 0.02, "window": 1.0, "channels": 140, "repeat": 1}
NEW_VOICES = (10, 11)


def voices(test: SHD) -> dict[str, Subset]:
    """The test utterances of voices that training has and has not heard."""
    new = [i for i, speaker in enumerate(test.speakers.tolist()) if speaker in NEW_VOICES]
    return {"new voices": Subset(test, new), "known voices": Subset(test, sorted(set(range(len(test))) - set(new)))}


if __name__ == "__main__":
    data = os.environ.get("NEUROLSC_DATA")
    parser = arms.arguments(__doc__.splitlines()[0], epochs=12, seeds=4, lr=LR)
    parser.add_argument(
        "--digits", default=f"{data}/spoken_digits" if data else "", help="folder of train.h5 and test.h5"
    )
    parser.add_argument("--by", choices=["random", "speaker"], default="random", help="how validation is drawn")
    parser.add_argument("--cell", choices=["ALIFPlus", "ALIFPlusMinus"], default="ALIFPlus")
    parser.add_argument("--layers", type=int, default=2)
    args = parser.parse_args()
    odd = [
        str(value)
        for value, usual in ((args.by, "random"), (args.cell, "ALIFPlus"), (args.layers, 2), (args.lr, LR))
        if value != usual
    ]
    name = "_".join(["spoken_digits", *odd])
    which = f"synthetic spoken digits ({'full' if args.digits else 'embedded sample'}), validation {args.by}"
    about = f"{which}, {args.layers} x {WIDTH} {args.cell}, {FORM}, lr {args.lr:g}"
    share = 0.1 if args.digits else 0.2  # the sample is small
    experiment = Experiment(
        NetworkSettings(cell=args.cell, layers=args.layers, width=WIDTH),
        DataSettings(data="shd", root=args.digits, split_by=args.by, split_share=share, **FORM),
        training=arms.as_the_paper(args.epochs, BATCH, args.lr),
        start=arms.LEFT,
    )
    arms.main(arms.Benchmark(name, about, experiment, chance=0.05, groups=voices), args)
