"""The paper's pre-training with the paper's training: its registered arms (registration.md, section 13).

    python benchmarks/study/as_paper.py FOLDER [--workers 1] [--minutes 100]

FOLDER holds real_digits' train.h5 and test.h5. Appends a row for each finished trial to
results/study_as_paper.csv and goes on from those that are there, as headline.py does.
"""

from functools import partial
from pathlib import Path

import headline
from headline import Arm

from neurolsc.training import PAPER

RESULTS = Path(__file__).parents[1] / "results" / "study_as_paper.csv"
ARMS = [
    Arm(2, "ALIFPlus", start)
    for start in ("Default()", "LSC(1.0, rule='paper')", "LSC(0.5, rule='paper')", "RateMatching(0.15)")
]
DATA = {name: headline.SETTINGS[name] for name in ("data", "dt", "channels", "repeat", "width")}
SETTINGS = DATA | {"layer_delay": 1, "tau_theta": 250.0, "readout_bias": True}
SETTINGS |= PAPER | {"batch_size": 100, "epochs": 200, "patience": 10}

if __name__ == "__main__":
    headline.main(ARMS, partial(headline.run, settings=SETTINGS), RESULTS, __doc__)
