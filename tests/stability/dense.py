"""Derivatives of a step as matrices, in closed form and by autograd: what radii and products are compared with."""

from collections.abc import Callable

import torch
from torch import Tensor

from neurolsc.stability.transitions import Transitions, flat, output_of, step_of


def time_derivative(t: Transitions) -> Tensor:
    """d h[t, l] / d h[t-1, l], shape (K B, S, S); in closed form where the cell has one."""
    if known := t.cell.derivatives():
        return sum(known.by_state(t.x, t.before).values(), t.x.new_zeros(()))
    return time_derivative_by_autograd(t)


def depth_factors(t: Transitions) -> tuple[Tensor, Tensor | None]:
    """d h[t, l] / d x (K B or 1, S, n_in), and d x / d h below (K B, n_in, S_below).

    The depth derivative is their product; for the first layer the second is None, and it is the first alone.
    """
    known = t.cell.derivatives()
    by_input = known.by_input(t.x, t.before) if known else input_derivative_by_autograd(t)
    if t.below is None:
        return by_input, None
    known = t.below.derivatives()
    return by_input, known.of_output(t.state_below) if known else output_derivative_by_autograd(t)


def depth_derivative(t: Transitions) -> Tensor:
    """d h[t, l] / d h[t', l-1], shape (K B, S, S_below); of the first layer by its input, (K B or 1, S, n_in)."""
    by_input, below = depth_factors(t)
    return by_input if below is None else by_input @ below


def time_derivative_by_autograd(t: Transitions) -> Tensor:
    """d h[t, l] / d h[t-1, l] (K B, S, S) by autograd, for any cell."""
    return jacobian(step_of(t), flat(t.before), t.x)


def input_derivative_by_autograd(t: Transitions) -> Tensor:
    """d h[t] / d x (K B, S, n_in) by autograd."""
    return jacobian(lambda x, h: step_of(t)(h, x), t.x, flat(t.before))


def output_derivative_by_autograd(t: Transitions) -> Tensor:
    """d x / d h below (K B, n_in, S_below) by autograd."""
    return jacobian(output_of(t.below, t.state_below), flat(t.state_below))


def random_submatrix(m: Tensor, generator: torch.Generator) -> Tensor:
    """Square sub-matrices (..., k, k) of matrices (..., M, N): k = min(M, N) random lines of the longer side.

    The choice is drawn for each matrix, by a generator on the CPU; square matrices stay as they are.

    Source: the paper's released code, for derivatives between layers of unequal width; the text is silent.
    """
    rows, columns = m.shape[-2:]
    if rows == columns:
        return m
    if rows > columns:
        return random_submatrix(m.mT, generator).mT
    chosen = torch.rand(*m.shape[:-2], columns, generator=generator).argsort(-1)[..., :rows].to(m.device)
    return m.gather(-1, chosen.unsqueeze(-2).expand(*m.shape[:-1], rows))


def jacobian(function: Callable[..., Tensor], at: Tensor, *context: Tensor) -> Tensor:
    """The Jacobians (B, N, M) of a function of (B, M), and a context (B, ...), that treats samples apart.

    Every sample is repeated once per output and one backward pass picks one output from each copy. It needs neither
    ``vmap`` nor ``jacrev``, which surrogates of other libraries refuse.
    """
    with torch.enable_grad():
        at, context = at.detach(), tuple(c.detach() for c in context)
        batch, outputs = at.shape[0], function(at, *context).shape[1]
        copies = at.repeat_interleave(outputs, 0).requires_grad_()
        rows = function(copies, *(c.repeat_interleave(outputs, 0) for c in context))
        picked = rows.view(batch, outputs, outputs).diagonal(dim1=1, dim2=2).sum()
        (gradient,) = torch.autograd.grad(picked, copies, create_graph=True, materialize_grads=True)
    return gradient.view(batch, outputs, -1)


# ---- operators


def check_operator(operator, dense: Tensor) -> None:
    """Products, transposes and some of the points are those of the matrices (P, rows, columns)."""
    points, rows, columns = dense.shape
    assert (operator.rows, operator.columns) == (rows, columns)
    x, y, some = torch.randn(points, columns), torch.randn(points, rows), torch.tensor([points - 1, 0, 0])
    torch.testing.assert_close(operator.matvec(x), torch.einsum("pij,pj->pi", dense, x))
    torch.testing.assert_close(operator.rmatvec(y), torch.einsum("pij,pi->pj", dense, y))
    part = operator.take(some)
    torch.testing.assert_close(part.matvec(x[some]), torch.einsum("pij,pj->pi", dense[some], x[some]))
    torch.testing.assert_close(part.rmatvec(y[some]), torch.einsum("pij,pi->pj", dense[some], y[some]))


def check_terms(step, parts: dict[str, Tensor], points: int) -> None:
    some = torch.tensor([points - 1, 0])
    x, y = torch.randn(points, step.columns), torch.randn(points, step.rows)
    whole, part = step.terms(x, y), step.take(some).terms(x[:2], y[:2])
    assert set(whole) == set(part) == set(parts)
    for name, m in parts.items():
        m = m.expand(points, -1, -1)
        torch.testing.assert_close(whole[name], torch.einsum("pi,pij,pj->p", y, m, x))
        torch.testing.assert_close(part[name], torch.einsum("pi,pij,pj->p", y[:2], m[some], x[:2]))
