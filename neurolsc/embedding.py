"""Words for numbers, on the way in and on the way out."""

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from neurolsc.validation import whole


class Embedding(nn.Module):
    r"""A vector for each word.

    What a network reads are then numbers of words, x (T, B, 1), and its first layer reads their
    vectors. Tied, the scores of the words are products with the same vectors, :math:`o[t] = E\,
    z[t, L]`, and the last layer is as wide as they are: there is no other readout.

    Args:
        words: how many there are.
        width: entries of a vector.
        tied: whether the vectors are the readout, too.

    Attributes:
        weight: E (words, width), uniform within 0.05.

    Raises:
        ValueError: if a size is below 1.

    Example:
        >>> from neurolsc import GRU, Network
        >>> network = Network([GRU(8, 8)], embedding=Embedding(50, 8, tied=True))
        >>> network(torch.randint(50, (20, 4, 1))).shape
        torch.Size([20, 4, 50])

    Source: arXiv:2308.12075, App. G ("the output of the last layer is multiplied by the
    embedding"); O. Press, L. Wolf, "Using the output embedding to improve language models",
    arXiv:1608.05859. The start is that of Keras.
    """

    def __init__(self, words: int, width: int, *, tied: bool = False) -> None:
        super().__init__()
        self.words, self.width, self.tied = whole("words", words), whole("width", width), tied
        self.weight = nn.Parameter(nn.init.uniform_(torch.empty(words, width), -0.05, 0.05))

    def forward(self, numbers: Tensor) -> Tensor:
        """Vectors (..., width) of numbers (..., 1)."""
        return embedding(numbers.squeeze(-1).long(), self.weight)

    def check(self, numbers: Tensor) -> None:
        """Refuse what are no numbers of words.

        Raises:
            TypeError: if they are not whole numbers, or sparse.
            ValueError: if one is not in 0 ... words - 1.
        """
        if numbers.is_sparse or numbers.is_floating_point() or numbers.dtype == torch.bool:
            kind = "sparse" if numbers.is_sparse else numbers.dtype
            raise TypeError(f"x must be whole numbers of words, dense, got {kind}.")
        least, most = int(numbers.min()), int(numbers.max())
        if not 0 <= least <= most < self.words:
            raise ValueError(f"x must be numbers of words in 0 ... {self.words - 1}, got {least} ... {most}.")

    def config(self) -> dict[str, object]:
        """The constructor's arguments as JSON values."""
        return {"words": self.words, "width": self.width, "tied": self.tied}

    def extra_repr(self) -> str:
        return f"{self.words}, {self.width}, tied={self.tied}"


class Tied(nn.Module):
    """The readout of a tied embedding: products with its vectors, without parameters of its own."""

    def __init__(self, of: Embedding) -> None:
        super().__init__()
        self._of = [of]  # in a list: its parameters are counted once, as those of the embedding

    def forward(self, z: Tensor) -> Tensor:
        """Scores (..., words) of outputs (..., width)."""
        return linear(z, self._of[0].weight)
