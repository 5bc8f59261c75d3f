"""The maps that stand for dense derivatives by default: products, transposes, named terms, some of
the points."""

import pytest
import torch
from torch import Tensor

from neurolsc.neurons import Derivatives

pytestmark = pytest.mark.usefixtures("float64")

P, S, N_IN, N = 4, 5, 3, 2


class Drawn(Derivatives):
    """Two terms, of which one is the same at all points."""

    def by_state(self, x: Tensor, state: Tensor) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(0)
        return {"own": torch.randn(P, S, S, generator=generator), "shared": torch.randn(1, S, S, generator=generator)}

    def by_input(self, x: Tensor, state: Tensor) -> Tensor:
        return torch.randn(P, S, N_IN, generator=torch.Generator().manual_seed(1))

    def of_output(self, state: Tensor) -> Tensor:
        return torch.randn(1, N, S, generator=torch.Generator().manual_seed(2))


def test_maps_by_default_are_the_dense_derivatives():
    known, nothing = Drawn(), torch.zeros(P, 0)
    whole = sum(known.by_state(nothing, nothing).values())
    made = {
        "state": (known.state_map(nothing, nothing), whole),
        "input": (known.input_maps(nothing, nothing)[0], known.by_input(nothing, nothing)),
        "output": (known.output_maps(nothing)[0], known.of_output(nothing)),
    }
    some = torch.tensor([2, 0])
    for name, (step, dense) in made.items():
        assert (step.rows, step.columns) == dense.shape[1:], name
        assert step.same == (name == "output")
        x, y = torch.randn(P, step.columns), torch.randn(P, step.rows)
        m = dense.expand(P, -1, -1)
        torch.testing.assert_close(step.matvec(x), torch.einsum("pij,pj->pi", m, x))
        torch.testing.assert_close(step.rmatvec(y), torch.einsum("pij,pi->pj", m, y))
        torch.testing.assert_close(step.dense().expand(P, -1, -1), m)
        part = step.take(some)
        torch.testing.assert_close(part.matvec(x[some]), torch.einsum("pij,pj->pi", m[some], x[some]))
        torch.testing.assert_close(part.rmatvec(y[some]), torch.einsum("pij,pi->pj", m[some], y[some]))


@pytest.mark.parametrize("at", [[0, 1, 2, 3], [3, 1]])
def test_terms_between_two_vectors(at):
    known, nothing = Drawn(), torch.zeros(P, 0)
    index, parts = torch.tensor(at), known.by_state(nothing, nothing)
    x, y = torch.randn(len(at), S), torch.randn(len(at), S)
    found = known.state_map(nothing, nothing).take(index).terms(x, y)
    assert list(found) == ["own", "shared"]
    for name, part in parts.items():
        m = part.expand(P, -1, -1)[index]
        torch.testing.assert_close(found[name], torch.einsum("pi,pij,pj->p", y, m, x))
