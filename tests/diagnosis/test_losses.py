"""The user's loss: words are their formulas, tasks and functions are themselves, and what does not fit is refused."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from neurolsc import diagnose, try_cures
from neurolsc.diagnosis.losses import check, objective
from neurolsc.diagnosis.measurements import Batch
from neurolsc.interop.prepared import prepare
from neurolsc.tasks import Classification, ClassPerStep

T, B, C = 7, 4, 3


@pytest.fixture
def out() -> Tensor:
    return torch.randn(T, B, C, dtype=torch.float64)


@pytest.fixture
def y() -> Tensor:
    return torch.arange(B) % C


def test_words_are_their_formulas(out, y):
    torch.testing.assert_close(objective("count")(out, y), cross_entropy(out.sum(0), y))
    torch.testing.assert_close(objective("membrane")(out, y), cross_entropy(out.mean(0), y))
    each = torch.stack([cross_entropy(now, y) for now in out]).mean()
    torch.testing.assert_close(objective("step")(out, y), each)
    per_step = torch.randint(C, (T, B))
    torch.testing.assert_close(objective("step")(out, per_step), cross_entropy(out.flatten(0, 1), per_step.flatten()))


def test_words_leave_out_what_comes_after_the_end_of_a_sample(out, y):
    lengths = torch.tensor([7, 3, 5, 1])
    mask = torch.arange(T).unsqueeze(1) < lengths
    masked = out * mask.unsqueeze(-1)  # as a network sends it
    counts = torch.stack([masked[:n, b].sum(0) for b, n in enumerate(lengths)])
    torch.testing.assert_close(objective("count")(masked, y, mask), cross_entropy(counts, y))
    means = counts / lengths.unsqueeze(1)
    torch.testing.assert_close(objective("membrane")(masked, y, mask), cross_entropy(means, y))
    alone = [cross_entropy(out[:n, b], y[b].expand(n)) for b, n in enumerate(lengths)]
    torch.testing.assert_close(objective("step")(masked, y, mask), torch.stack(alone).mean())


def test_tasks_and_functions_are_themselves(out, y):
    last = Classification(last=2)
    torch.testing.assert_close(objective(last)(out, y), last.loss(out, y))
    assert objective(last).of_classes and not objective(ClassPerStep()).of_classes

    def squares(out: Tensor, y: Tensor) -> Tensor:
        return mse_loss(out.mean(0), y)

    target = torch.randn(B, C, dtype=torch.float64)
    torch.testing.assert_close(objective(squares)(out, target), squares(out, target))


def no_gradient(out: Tensor, y: Tensor) -> Tensor:
    return (out.argmax(-1) == y).double().mean()


def each_sample(out: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(out.sum(0), y, reduction="none")


def no_tensor(out: Tensor, y: Tensor) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        ("counts", ValueError, r"loss must be one of 'count', 'membrane', 'step', got 'counts'; did you mean count\?"),
        (3, TypeError, r"loss must be 'count', 'membrane', 'step', a task or a function of \(out, y\), got int"),
        (Classification, TypeError, r"loss must be an object, got the class Classification: give Classification\(\)"),
        (no_gradient, ValueError, r"loss must have a gradient by the output, got a number without one"),
        (each_sample, ValueError, r"loss must return one number, got a tensor \(4,\)"),
        (no_tensor, TypeError, r"loss must return a tensor of one number, got float"),
        (nn.CrossEntropyLoss(), ValueError, r"loss cannot read out \(7, 4, 3\) and y \(4,\) of this network"),
        (
            ClassPerStep(),
            ValueError,
            r"loss cannot read out \(7, 4, 3\) and y \(4,\) of this network: targets must have",
        ),
    ],
)
def test_a_loss_that_is_none_is_refused(loss, error, message, out, y):
    with pytest.raises(error, match=message):
        check(loss, out, y)


@pytest.mark.parametrize(
    ("y", "error", "message"),
    [
        (torch.zeros(5, dtype=torch.long), ValueError, r'y must have the shape \(4,\) for loss="count", got \(5,\)'),
        (torch.zeros(B), TypeError, r"y must be classes, whole numbers"),
        (torch.full((B,), 3), ValueError, r"y must be classes from 0 to 2, as this network has 3 outputs, got 3 to 3"),
        (torch.full((B,), -1), ValueError, r"y must be classes from 0 to 2, .* got -1 to -1"),
    ],
)
def test_classes_that_do_not_fit_are_refused_by_name(y, error, message, out):
    with pytest.raises(error, match=message):
        check("count", out, y)


def test_a_diagnosis_refuses_what_does_not_fit_and_leaves_the_network(make_network, make_spikes):
    network, x = make_network(), make_spikes(T=10, B=4)
    y = torch.arange(4)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    refused = [
        ((x[0],), {}, ValueError, r"x must have shape \(T, B, 30\)"),
        ((x, [0, 1, 2, 3]), {}, TypeError, r"y must be a torch\.Tensor, got list"),
        (((x, y, y, y),), {}, TypeError, r"a batch must be a tensor x, or \(x, targets\) or \(x, targets, mask\)"),
        ((x, y[:3]), {}, ValueError, r"y must be of 4 samples, \(4,\) or \(10, 4, \.\.\.\), got \(3,\)"),
        ((x, y), {"lr": "fast"}, TypeError, r"lr must be a number, got str \('fast'\)"),
        ((x, y), {"lr": True}, TypeError, r"lr must be a number, got bool"),
        ((x, y), {"lr": -1.0}, ValueError, r"lr must be positive"),
        ((x, y), {"lr": 1e38}, ValueError, r"lr must be at most 1e\+37, got 1e\+38"),
        ((x, y + 1), {"loss": "count"}, ValueError, r"y must be classes from 0 to 3"),
        ((x, y), {"loss": each_sample}, ValueError, r"loss must return one number"),
    ]
    for arguments, settings, error, message in refused:
        with pytest.raises(error, match=message):
            diagnose(network, *arguments, **settings)
        with pytest.raises(error, match=message):
            try_cures(network, *arguments, **settings)
    with pytest.raises(ValueError, match="trials need targets: give y"):
        try_cures(network, x)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_batch_is_x_and_y_or_a_tuple_and_is_cut_along_samples(make_network, make_spikes):
    network, x = make_network(), make_spikes(T=10, B=6)
    y, steps, numbers = torch.arange(6) % 4, torch.randint(4, (10, 6)), torch.randn(6, 4)
    for given in (Batch.of(prepare(network, x, y)), Batch.of(prepare(network, (x, y)))):
        assert torch.equal(given.x, x) and torch.equal(given.targets, y) and given.mask is None
    for targets, wanted in ((y, y[2:4]), (steps, steps[:, 2:4]), (numbers, numbers[2:4])):
        part = Batch.of(prepare(network, x, targets)).part(2, 4)
        assert torch.equal(part.x, x[:, 2:4]) and torch.equal(part.targets, wanted)


@pytest.mark.parametrize("loss", ["count", "membrane", "step"])
def test_a_diagnosis_measures_the_loss_and_its_gradient(loss, make_network, make_spikes):
    network, x, y = make_network(gain=3), make_spikes(T=10, B=8), torch.arange(8) % 4
    found = diagnose(network, x, y, loss=loss, samples=2, steps=2).measurements
    value = objective(loss)(network(x), y)
    assert found.loss == pytest.approx(value.item(), rel=1e-5)
    gradients = torch.autograd.grad(value, list(network.cells[0].parameters()))
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
    assert found.layers[0].gradient == pytest.approx(norm, rel=1e-4)


def test_a_function_shows_by_its_value_at_outputs_of_0_whether_it_guesses_among_classes():
    zeros, y = torch.zeros(5, 6, 4), torch.arange(6) % 4
    summed = objective(lambda out, y: cross_entropy(out.sum(0), y))
    assert summed.guesses_among(zeros, y) == 4
    assert objective("count").guesses_among(zeros, y) == 4
    for other in (lambda out, y: out.square().mean(), lambda out, y: cross_entropy(out.sum(0), y, reduction="sum")):
        assert objective(other).guesses_among(zeros, y) is None
    assert objective(lambda out, y: (out - y).square().mean()).guesses_among(zeros, torch.ones(5, 6, 4)) is None
