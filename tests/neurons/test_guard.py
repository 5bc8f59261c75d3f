"""A subclass never gets the run or the derivatives of another step; closed forms of one's own."""

import copy
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from neurolsc import LIF, ALIFPlus, ALIFPositive, Cell, Network, SpikingCell, radius_profile
from neurolsc.interop.norse import LIFRecurrentCell
from neurolsc.neurons import Derivatives, LIFState, ScaledParameter, Term
from neurolsc.surrogate import FastSigmoid
from tests.neurons.steps import by_steps


class Quadratic(LIF):
    """A LIF whose voltage also grows by its square, up to 1."""

    def update(self, x: Tensor, z: Tensor, state: LIFState) -> LIFState:
        v = super().update(x, z, state).v
        return LIFState(v + 0.3 * state.v.clamp(-1, 1) ** 2)


class Faster(LIF):
    @property
    def decay_v(self) -> Tensor:
        return super().decay_v / 2


class Halved:
    def update(self, x: Tensor, z: Tensor, state: LIFState) -> LIFState:
        return super().update(x / 2, z, state)  # type: ignore[misc]


class Mixed(Halved, LIF):
    pass


class Patched(LIF):
    """A function set on the instance."""

    def __init__(self, *args, **settings) -> None:
        super().__init__(*args, **settings)
        update = self.update
        self.update = lambda x, z, state: update(x / 2, z, state)


def fresh(kind: type[Cell], **settings: object) -> Cell:
    torch.manual_seed(0)
    return kind(20, 40, tau_v=5.0, **settings).double()


def spikes(steps: int = 8, batch: int = 3) -> Tensor:
    return (torch.rand(steps, batch, 20, generator=torch.Generator().manual_seed(1)) < 0.2).double()


def dense_radius(cell: Cell, x: Tensor, h: Tensor) -> Tensor:
    """Radii of the derivative of the step by the voltage (B, N), by torch.func alone."""

    def step(v: Tensor, now: Tensor) -> Tensor:
        return cell.step(now[None], LIFState(v[None]))[1].v[0]

    return torch.linalg.eigvals(torch.func.vmap(torch.func.jacrev(step))(h, x)).abs().amax(-1)


@pytest.mark.parametrize("kind", [Quadratic, Faster, Mixed, Patched])
def test_a_cell_that_overrides_a_part_of_its_step_has_its_own_spikes_and_radii(kind):
    cell, x = fresh(kind, spike=FastSigmoid(0.1), threshold=0.5), spikes()
    assert cell.derivatives() is None
    z, _ = cell.run(x, cell.initial_state(3))
    assert z.sum() > 10
    state, own = cell.initial_state(3), []
    for now in x:
        sent, state = cell.step(now, state)
        own.append(sent)
    assert torch.equal(z, torch.stack(own))
    plain = fresh(LIF, spike=FastSigmoid(0.1), threshold=0.5)
    assert not torch.equal(z, plain.run(x, plain.initial_state(3))[0])

    network = Network([cell], 2).double()
    profiles = [radius_profile(network, x, method=method) for method in ("krylov", "exact")]
    states = network.initial_states(3)
    for t, now in enumerate(x):
        wanted = dense_radius(cell, states.x, states.layers[0].v)
        for profile in profiles:
            torch.testing.assert_close(profile.time[0, t], wanted, rtol=1e-8, atol=1e-8)
        _, states = network.step(now, states)


def test_a_closed_form_of_ones_own_is_used_and_not_passed_on():
    known = type("Known", (Quadratic,), {"closed_form": lambda self: "mine"})
    other = type("Other", (known,), {"update": lambda self, *step: known.update(self, *step)})
    assert known(3, 2).derivatives() == "mine"
    assert other(3, 2).derivatives() is None


def test_closed_forms_are_used_for_surrogates_in_two_methods_alone():
    class OneSided(FastSigmoid):
        def shape(self, x):
            return (1 + x.abs()) ** -3

    patched = FastSigmoid()
    patched.derivative = lambda v: v
    for spike in (patched, OneSided(), torch.sign):  # others are among the tests of the fast path
        assert ALIFPlus(3, 2, spike=spike).derivatives() is None
    starts = type("Starts", (ALIFPlus,), {"initial_state": lambda self, batch: ALIFPlus.initial_state(self, batch)})
    for kind in (ALIFPlus, ALIFPositive, LIFRecurrentCell, starts):
        assert kind(3, 2).derivatives() is not None


class EchoState(NamedTuple):
    v: Tensor


class TwoTerms(Derivatives):
    """A leak and a recurrence of a linear cell, as matrices alone."""

    terms = (Term("leak"), Term("echo", "turn the echo down", "turn the echo up"))
    reads_input = False

    def __init__(self, cell: "Echo") -> None:
        self.cell = cell

    def by_state(self, x: Tensor, state: EchoState) -> dict[str, Tensor]:
        leak = torch.diag_embed(self.cell.leak.expand_as(state.v))
        return {"leak": leak, "echo": self.cell.w.expand(len(state.v), -1, -1)}

    def by_input(self, x: Tensor, state: EchoState) -> Tensor:
        return self.cell.w_in.unsqueeze(0)

    def of_output(self, state: EchoState) -> Tensor:
        return torch.diag_embed(1 - torch.tanh(state.v).square())


class Echo(Cell):
    """Linear neurons that send the tanh of their state."""

    def __init__(self, n_in: int, n_hidden: int) -> None:
        super().__init__(n_in, n_hidden)
        self.w_in = nn.Parameter(torch.randn(n_hidden, n_in) / n_in**0.5)
        self.w = nn.Parameter(torch.randn(n_hidden, n_hidden) / n_hidden**0.5)
        self.leak = nn.Parameter(torch.rand(n_hidden) * 0.2)

    def initial_state(self, batch: int) -> EchoState:
        return EchoState(torch.zeros(batch, self.n_hidden, **self.dtype_and_device))

    def output(self, state: EchoState) -> Tensor:
        return torch.tanh(state.v)

    def update(self, x: Tensor, z: Tensor, state: EchoState) -> EchoState:
        return EchoState(self.leak * state.v + state.v @ self.w.T + x @ self.w_in.T)

    def closed_form(self) -> Derivatives | None:
        return TwoTerms(self)


@pytest.mark.parametrize("width", [30, 100])  # dense eigenvalues, and products with vectors
def test_three_derivatives_as_matrices_are_enough_for_every_method(width):
    torch.manual_seed(0)
    known = Network([Echo(20, width), Echo(width, width)], 2).double()
    plain = copy.deepcopy(known)
    for cell in plain.cells:
        cell.closed_form = lambda: None
    x = spikes(4, 2)
    wanted = radius_profile(plain, x, method="exact")
    for network in (known, plain):
        for method in ("krylov", "exact"):
            found = radius_profile(network, x, method=method)
            torch.testing.assert_close(found.time, wanted.time, rtol=0.01, atol=0)
            torch.testing.assert_close(found.depth, wanted.depth, rtol=0.01, atol=1e-12)
    profile = radius_profile(known, x)
    assert profile.main_term(0).name == "echo"
    assert "echo" in str(profile)


def test_a_spiking_cell_of_ones_own_needs_no_more_than_its_step():
    class Plain(SpikingCell):
        def initial_state(self, batch):
            return LIFState(torch.zeros(batch, self.n_hidden, **self.dtype_and_device))

        def distance(self, state):
            return state.v - 0.2

        def update(self, x, z, state):
            return LIFState(self.decay_v * state.v * (1 - z) + x @ self.w_in.T + z @ self.w_rec.T)

    cell = fresh(Plain)
    network = Network([cell], 2).double()
    assert network.run(spikes()).spikes[0].mean() > 0.01
    assert torch.equal(*(run(cell, spikes(), cell.initial_state(3))[0] for run in (by_steps, Plain.run)))
    assert radius_profile(network, spikes(), steps=3).time.isfinite().all()


@pytest.mark.parametrize(("spike", "message"), [(1.0, "spike must be"), (FastSigmoid, r"write FastSigmoid\(\)")])
def test_a_spike_that_is_none_is_refused(spike, message):
    with pytest.raises(TypeError, match=message):
        LIF(3, 2, spike=spike)


class ListOfThresholds(LIF):
    def thresholds(self):
        return [self.theta]


class WordOfMembrane(LIF):
    def membrane(self):
        return "v"


class Bools(LIF):
    def output(self, state):
        return state.v > self.theta


class Integers(LIF):
    def output(self, state):
        return super().output(state).int()


class OneSample(LIF):
    def output(self, state):
        return super().output(state)[0]


class TensorState(LIF):
    def initial_state(self, batch):
        return torch.zeros(batch, self.n_hidden)


class NoBatch(LIF):
    def initial_state(self, batch):
        return LIFState(torch.zeros(self.n_hidden))


class VoltageAlone(LIF):
    def update(self, x, z, state):
        return super().update(x, z, state).v


class Growing(LIF):
    def update(self, x, z, state):
        return LIFState(super().update(x, z, state).v.repeat(1, 2))


class InPlace(LIF):
    def update(self, x, z, state):
        state.v.mul_(0.5)
        return super().update(x, z, state)


class Double(LIF):
    def initial_state(self, batch):
        return LIFState(torch.zeros(batch, self.n_hidden, dtype=torch.float64))


class DoubleAfterwards(LIF):
    def update(self, x, z, state):
        return LIFState(super().update(x, z, state).v.double())


class NumberOfDerivatives(Echo):
    def closed_form(self):
        return 3


class WrongTerms(TwoTerms):
    def by_state(self, x, state):
        return super().by_state(x, state) | {"echo": self.cell.w}


class WrongInput(TwoTerms):
    def by_input(self, x, state):
        return self.cell.w_in.T[None]


class WrongByState(Echo):
    def closed_form(self):
        return WrongTerms(self)


class WrongByInput(Echo):
    def closed_form(self):
        return WrongInput(self)


class Pairs(LIF):
    scaled_parameters = (("w_in", "depth"),)


class OneParameter(LIF):
    paper_scaled_parameters = ScaledParameter("w_in", "depth")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ListOfThresholds, r"ListOfThresholds\.thresholds must return a .*Thresholds or None, got list"),
        (WordOfMembrane, r"WordOfMembrane\.membrane must return a .*Membrane or None, got str"),
        (Bools, r"Bools\.output must return a float tensor .* \(2, 16\), got torch\.bool \(2, 16\)"),
        (Integers, r"Integers\.output must return a float tensor .* got torch\.int32"),
        (OneSample, r"OneSample\.output must return a float tensor .* got torch\.float32 \(16,\)"),
        (
            TensorState,
            r"TensorState\.initial_state must return a NamedTuple of tensors \(B, \.\.\.\), got torch\.float32",
        ),
        (NoBatch, r"NoBatch\.initial_state must return .* B = 2, got torch\.float32 \(16,\)"),
        (
            VoltageAlone,
            r"VoltageAlone\.update must return a state as initial_state does, a LIFState, got torch\.float32",
        ),
        (Growing, r"Growing\.update must return v with shape \(2, 16\), .* got torch\.float32 \(2, 32\)"),
        (InPlace, r"InPlace\.update and InPlace\.output must not change x or the state in place"),
        (Double, r"Double\.initial_state must return v of torch\.float32, .* got torch\.float64 \(2, 16\)"),
        (DoubleAfterwards, r"DoubleAfterwards\.update must return v of torch\.float32, .* got torch\.float64"),
        (NumberOfDerivatives, r"NumberOfDerivatives\.closed_form must return a .*Derivatives or None, got int"),
        (WrongByState, r"WrongTerms\.by_state: .*'echo' must have the shape \(B, 16, 16\), .* got \(16, 16\)"),
        (WrongByInput, r"WrongByInput\.closed_form: WrongInput\.by_input must .*\(B, 16, 12\).* got \(1, 12, 16\)"),
        (Pairs, r"Pairs\.scaled_parameters must be a tuple of ScaledParameter\(name, radius\), got \(\('w_in',"),
        (OneParameter, r"OneParameter\.paper_scaled_parameters must be a tuple of .*, got a ScaledParameter"),
    ],
)
def test_a_cell_of_ones_own_that_returns_something_else_is_refused_by_class_and_method(kind, message):
    with pytest.raises(TypeError, match=message):
        Network([kind(12, 16), LIF(16, 8)], n_out=4)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            lambda: ScaledParameter("w_rec", "tiem"),
            "radius must be one of 'time', 'depth', got 'tiem'; did you mean time",
        ),
        (lambda: ScaledParameter("tau_v", "time", "decays"), "through must be one of .* did you mean decay"),
        (lambda: ScaledParameter("w_rec", "time", sign=3), "sign must be 1 or -1, got 3"),
        (lambda: ScaledParameter("w_re", "time"), r"Mine\.scaled_parameters names 'w_re', which .* did you mean w_rec"),
        (lambda: ScaledParameter("gate.weight", "time"), r"names 'gate\.weight', which a Mine lacks"),
        (lambda: ScaledParameter("w_rec", "time", limit="most"), "names 'most', which a Mine lacks"),
    ],
)
def test_a_scaled_parameter_that_is_none_is_refused_by_the_name_that_came(entry, message):
    with pytest.raises(ValueError, match=message):
        Network([type("Mine", (LIF,), {"scaled_parameters": (entry(),)})(12, 16)], n_out=4)


def test_the_check_of_a_cell_of_ones_own_leaves_random_numbers_as_they_are():
    cell = Quadratic(12, 16)
    before = torch.get_rng_state()
    Network([cell], n_out=nn.Identity())
    assert torch.equal(before, torch.get_rng_state())
