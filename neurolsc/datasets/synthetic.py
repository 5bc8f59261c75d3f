"""Store and recall: a stream of values, of which one is to be remembered."""

from collections.abc import Sequence

import torch

from neurolsc.datasets.batches import Batch, BatchDataset, Split
from neurolsc.validation import one_of, whole

PERIOD = 20  # steps
VALUES, GROUP = 4, 10  # how many values there are, and neurons of a group
ON, OFF = 0.2, 0.01  # probability of a spike in a step, of a neuron whose group is on or off
SIZES = {"train": 2_000, "validation": 500, "test": 1_000}


class StoreRecall(BatchDataset):
    r"""A value to store, a delay with other values, and the question which it was.

    Inputs come in groups of 10 neurons: one for each of 4 values, one for *store* and one for *recall*. In each period
    of 20 steps a value is shown, drawn anew; in the first period *store* is on as well, in the last one *recall* is,
    and no value is shown. Between the two lie `delay` steps. A neuron of a group that is on fires with probability 0.2
    in a step, any other with 0.01.

    Item i is a pair (x, label): x of shape (40 + delay, 60), uint8 zeros and ones, and the value of the first period.
    Only the last period is to be scored: :class:`neurolsc.tasks.Classification` with last=20.

    Args:
        split: ``"train"``, ``"validation"`` or ``"test"``: 2,000, 500 and 1,000 samples.
        seed: of all that is drawn.
        delay: steps from the end of the first period to the beginning of the last, a multiple of 20.

    Attributes:
        labels: the values to store (n,), int64.

    Raises:
        ValueError: if the split is unknown or a number out of range.

    Source: after the store-recall task of Salaj et al., eLife 10 (2021), e65459, Fig. 2; the code and its numbers are
    ours.
    """

    def __init__(self, split: Split, *, seed: int = 0, delay: int = 100) -> None:
        count = SIZES[one_of("split", split, tuple(SIZES))]
        whole("seed", seed, at_least=0)
        if whole("delay", delay, at_least=0) % PERIOD:
            raise ValueError(f"delay must be a multiple of the period of {PERIOD} steps, got {delay}.")
        self.split, self.n_classes, self.n_in = split, VALUES, (VALUES + 2) * GROUP
        self.steps = 2 * PERIOD + delay
        draw = torch.Generator().manual_seed(3 * seed + list(SIZES).index(split))
        periods = 1 + delay // PERIOD
        shown = torch.randint(VALUES, (count, periods), generator=draw)
        self.labels = shown[:, 0].clone()
        signal = torch.zeros(count, periods + 1, VALUES + 2)  # per period and group
        signal[:, :-1, :VALUES] = torch.nn.functional.one_hot(shown, VALUES).float()
        signal[:, 0, VALUES] = signal[:, -1, VALUES + 1] = 1
        chances = (OFF + (ON - OFF) * signal).repeat_interleave(PERIOD, 1).repeat_interleave(GROUP, 2)
        self._spikes = (torch.rand(chances.shape, generator=draw) < chances).to(torch.uint8)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        chosen = torch.as_tensor(indices, dtype=torch.long)
        return Batch(self._spikes[chosen].transpose(0, 1).contiguous(), self.labels[chosen])
