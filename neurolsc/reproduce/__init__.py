"""The paper's figures and tables, one command each, small on the data in the package or as printed.

Map: `asked` says how large and of which data; `figure` is what all have: trials or none, numbers,
a picture, and what of the claim was found, which `reading` puts into one line; `trials` compares
rows of trials, `tables` writes tables; `make` is the whole way. One a file: `paths` (Fig. 1 a, b),
`pascal` (1 c), `feedforward` (2), `recurrent` (3), `lru` (4 and Table I), `rates` (S1),
`covariance` (S2, S3), `parameters` (Table S1). `registry` has them by name.
"""

from neurolsc.reproduce.asked import Asked
from neurolsc.reproduce.figure import Figure, Result
from neurolsc.reproduce.make import reproduce, trials_of
from neurolsc.reproduce.reading import Count, Judgement
from neurolsc.reproduce.registry import FIGURES, find

__all__ = ["FIGURES", "Asked", "Count", "Figure", "Judgement", "Result", "find", "reproduce", "trials_of"]
