"""The paper's figures and tables, small on the data in the package, or as printed.

``python -m examples.paper 2 --out runs/figure-2`` from the repository makes Fig. 2.

Map: `asked` says how large and of which data; `figure` is what all have: trials or none, numbers,
a picture, and what of the claim was found, which `reading` puts into one line; `trials` compares
rows of trials, `tables` writes tables; `make` is the whole way. One a file: `paths` (Fig. 1 a, b),
`pascal` (1 c), `feedforward` (2), `recurrent` (3), `lru` (4 and Table I), `rates` (S1),
`covariance` (S2, S3), `parameters` (Table S1). `registry` has them by name.
"""

from examples.paper.asked import Asked
from examples.paper.figure import Figure, Result
from examples.paper.make import reproduce, trials_of
from examples.paper.reading import Count, Judgement
from examples.paper.registry import FIGURES, find

__all__ = ["FIGURES", "Asked", "Count", "Figure", "Judgement", "Result", "find", "reproduce", "trials_of"]
