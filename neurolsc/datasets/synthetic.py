"""Store and recall: a stream of values, of which one is to be remembered."""

from collections.abc import Sequence

import torch

from neurolsc.datasets.batches import Batch, BatchDataset, Split
from neurolsc.validation import one_of, probability, whole

PERIOD = 20  # steps, by default
SIZES = {"train": 2_000, "validation": 500, "test": 1_000}


class StoreRecall(BatchDataset):
    r"""A value to store, a delay with other values, and the question which it was.

    Inputs come in groups of neurons: one for each value, one for *store* and one for *recall*. In
    each period a value is shown, drawn anew; in the first period *store* is on as well, in the last
    one *recall* is, and no value is shown. Between the two lie `delay` steps. A neuron of a group
    that is on fires with probability `on` in a step, any other with `off`.

    Item i is a pair (x, label): x of shape (T, n_in), uint8 zeros and ones, with T = 2 period +
    delay, and the value of the first period. Only the last period is to be scored:
    :class:`neurolsc.tasks.Classification` with last=period.

    Args:
        split: ``"train"``, ``"validation"`` or ``"test"``: 2,000, 500 and 1,000 samples, each drawn
            from a generator of its own.
        seed: of all that is drawn.
        values: how many values there are; chance is 1 / values.
        group: neurons of a group.
        period: steps of a period.
        delay: steps from the end of the first period to the beginning of the last, a multiple of
            the period.
        on: probability of a spike in a group that is on.
        off: likewise in one that is off.

    Attributes:
        split: name of the split.
        labels: the values to store (n,), int64.
        n_in: number of inputs, (values + 2) group.
        n_classes: number of values.
        steps: number of time steps T.

    Raises:
        TypeError: if a number is of the wrong kind.
        ValueError: if the split is unknown or a number out of range.

    Source: after the store-recall task of Salaj et al., eLife 10 (2021), e65459, Fig. 2; the code
    and its numbers are ours.

    Example:
        >>> shown = StoreRecall("test")
        >>> x, label = shown[0]
        >>> len(shown), x.shape, shown.n_classes
        (1000, torch.Size([140, 60]), 4)
    """

    def __init__(
        self,
        split: Split,
        *,
        seed: int = 0,
        values: int = 4,
        group: int = 10,
        period: int = PERIOD,
        delay: int = 100,
        on: float = 0.2,
        off: float = 0.01,
    ) -> None:
        count = SIZES[one_of("split", split, tuple(SIZES))]
        whole("seed", seed, at_least=0)
        for name, size in (("values", values), ("group", group), ("period", period)):
            whole(name, size)
        if whole("delay", delay, at_least=0) % period:
            raise ValueError(f"delay must be a multiple of the period of {period} steps, got {delay}.")
        probability("on", on)
        probability("off", off)
        self.split, self.n_classes, self.n_in = split, values, (values + 2) * group
        self.period, self.steps = period, 2 * period + delay
        draw = torch.Generator().manual_seed(3 * seed + list(SIZES).index(split))
        periods = 1 + delay // period
        shown = torch.randint(values, (count, periods), generator=draw)
        self.labels = shown[:, 0].clone()
        signal = torch.zeros(count, periods + 1, values + 2)  # per period and group
        signal[:, :-1, :values] = torch.nn.functional.one_hot(shown, values).float()
        signal[:, 0, values] = signal[:, -1, values + 1] = 1
        chances = (off + (on - off) * signal).repeat_interleave(period, 1).repeat_interleave(group, 2)
        self._spikes = (torch.rand(chances.shape, generator=draw) < chances).to(torch.uint8)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Several items at once: what a ``DataLoader`` calls for a batch."""
        chosen = torch.as_tensor(indices, dtype=torch.long)
        return Batch(self._spikes[chosen].transpose(0, 1).contiguous(), self.labels[chosen])

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(split={self.split!r}, {len(self)} items, x ({self.steps}, {self.n_in}), "
            f"{self.n_classes} values)"
        )
