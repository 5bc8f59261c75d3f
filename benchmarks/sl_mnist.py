"""Does setting the radius help ALIF+ learn spike-latency MNIST, and is it the radius that helps?

    python benchmarks/sl_mnist.py [--mnist FOLDER] [--epochs 4] [--lr 0.001] [--seeds 2]

2 x 128 ALIF+, 45,000 digits, batches of 256, the paper's optimizer, at the paper's 1e-3 or another
rate; arms and controls as _arms.py tells. The 10,000 test digits are scored. Writes
results/sl_mnist.json, .md and .png.
"""

import os

import _arms as arms

from neurolsc.config import DataSettings, NetworkSettings
from neurolsc.experiment import Experiment

LR = 1e-3


if __name__ == "__main__":
    data = os.environ.get("NEUROLSC_DATA")
    parser = arms.arguments(__doc__.splitlines()[0], epochs=4, seeds=2, lr=LR)
    parser.add_argument("--mnist", default=f"{data}/mnist" if data else "", help="folder of MNIST's IDX files")
    args = parser.parse_args()
    about = "MNIST" if args.mnist else "the embedded sample"
    name = "sl_mnist" if args.lr == LR else f"sl_mnist_{args.lr:g}"
    training = arms.as_the_paper(args.epochs, 256, args.lr)
    experiment = Experiment(NetworkSettings(), DataSettings(root=args.mnist), training=training, start=arms.LEFT)
    arms.main(arms.Benchmark(name, about, experiment, chance=0.1), args)
