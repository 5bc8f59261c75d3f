"""How does a neuron of one's own enter, from radii to training? An exponential LIF. Takes 30 s on a CPU."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import neurolsc
from neurolsc.datasets import SpikeLatencyMNIST, input_batches
from neurolsc.init import FiringRate
from neurolsc.neurons import LogParameter, NeuronCell, ScaledParameter, Term


class EIFState(NamedTuple):
    u: Tensor  # (B, N) potential, before the reset of its spike


@neurolsc.register
class EIF(NeuronCell):
    """Exponential integrate-and-fire, by Euler steps. Source: Fourcaud-Trocmé et al. 2003.

    r = u (1 - z), u' = r + (upswing(r) - r) / tau_v + W x + U z,
    upswing(r) = s theta exp((r / theta - 1/2) / s), s = 0.2
    """

    tau_v = LogParameter()
    scaled_parameters = (*NeuronCell.scaled_parameters, ScaledParameter("tau_v", "time"))
    block_terms = (Term("leak", "shorten tau_v"), Term("upswing", "lengthen tau_v"))
    state_type = EIFState

    def __init__(self, n_in: int, n_hidden: int, *, tau_v: float = 20.0, **options) -> None:
        super().__init__(n_in, n_hidden, **options)
        self.tau_v = tau_v * (0.5 + torch.rand(n_hidden))

    def upswing(self, r: Tensor) -> Tensor:
        return 0.2 * self.theta * torch.exp((r / self.theta - 0.5) / 0.2)

    def update(self, x: Tensor, z: Tensor, state: EIFState) -> EIFState:
        r = state.u * (1 - z.detach())
        return EIFState(r + (self.upswing(r) - r) / self.tau_v + self.current(x, z))

    def blocks(self, state: EIFState, s: Tensor, z: Tensor) -> dict[str, Tensor]:
        """The derivative of u' by u, by term, (P, 1, 1, N); without it autograd finds it."""
        by_r = self.upswing(state.u * (1 - z)) / (0.2 * self.theta)
        terms = {"leak": (1 - 1 / self.tau_v) * (1 - z), "upswing": by_r / self.tau_v * (1 - z)}
        return {name: term[:, None, None] for name, term in terms.items()}


if __name__ == "__main__":
    torch.manual_seed(0)
    network = neurolsc.Network([EIF(784, 64), EIF(64, 64)], 10, layer_delay=0).double()
    digits, held_out = map(SpikeLatencyMNIST.embedded, ("train", "validation"))
    batches = [x.double() for x in input_batches(digits, 64)]
    assert not FiringRate(0.15).apply(network, batches), "the rate is reached"
    found = []
    for closed_form in (neurolsc.Cell.closed_form, EIF.closed_form):  # the first is none: by autograd
        EIF.closed_form = closed_form
        profile = neurolsc.radius_profile(network, batches[0][:, :4], steps=8)
        found.append(torch.stack((profile.time, profile.depth)))
    torch.testing.assert_close(*found, rtol=1e-10, atol=0)
    print(profile)
    profile.plot(*sys.argv[1:], title="2 x 64 EIF, rate-matched, spike-latency MNIST, seed 0")
    best = neurolsc.train(network.float(), digits, held_out, epochs=2, lr=1e-2, progress=False).best
    print(f"mode accuracy {best['validation_mode_accuracy']:.0%}, spikes per step {best['firing_rate'][-1]:.2f}")
    assert best["validation_mode_accuracy"] > 0.3, "chance is 0.1"
    with tempfile.NamedTemporaryFile() as file:
        neurolsc.save(network, file.name)
        assert torch.equal(neurolsc.load(file.name)(batches[0].float()), network(batches[0].float()))
    command = "-m neurolsc radii --cell your_own_neuron:EIF --width 64 --tau-v 20"
    subprocess.run([sys.executable, *command.split()], cwd=Path(__file__).parent, check=True)
