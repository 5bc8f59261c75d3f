"""How does a neuron of one's own enter, from radii to training? SE-adLIF. Takes 90 s on a CPU."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import neurolsc
from neurolsc.datasets import SpikeLatencyMNIST, input_batches
from neurolsc.neurons import Derivatives, LogParameter, ScaledParameter, SpikingCell, Term


class SEadLIFState(NamedTuple):
    u: Tensor  # (B, N) potential, before the reset of its spike
    w: Tensor  # (B, N) adaptation current, of the step before


@neurolsc.register
class SEadLIF(SpikingCell):
    """Adaptive LIF by symplectic Euler steps. Source: Baronig et al. 2025, with its q = 120."""

    tau_w = LogParameter()
    scaled_parameters = (
        *(ScaledParameter("w_in", "depth"), ScaledParameter("w_rec", "time")),
        *(ScaledParameter(name, "time", through="decay") for name in ("tau_v", "tau_w")),
    )

    def __init__(self, n_in: int, n_hidden: int, *, tau_v: float = 15.0, reset: str = "zero", **options) -> None:
        super().__init__(n_in, n_hidden, tau_v=tau_v, reset=reset, **options)
        self.tau_v, self.tau_w = tau_v * (1 / 3 + 4 / 3 * torch.rand(n_hidden)), 60 + 240 * torch.rand(n_hidden)
        self.a, self.b = nn.Parameter(torch.rand(n_hidden)), nn.Parameter(2 * torch.rand(n_hidden))
        self.w_in.data *= 20  # the input enters by 1 - exp(-1/tau_v)

    def initial_state(self, batch: int) -> SEadLIFState:
        return SEadLIFState(*torch.zeros(2, batch, self.n_hidden, **self.dtype_and_device))

    def distance(self, state: SEadLIFState) -> Tensor:
        return state.u - 1

    def update(self, x: Tensor, z: Tensor, state: SEadLIFState) -> SEadLIFState:
        kept, slow = self.decay_v, torch.exp(-1 / self.tau_w)
        u = self.reset.carry(state.u, z, torch.ones_like(z))
        w = slow * state.w + (1 - slow) * 120 * (self.a * u + self.b * z)
        return SEadLIFState(kept * u + (1 - kept) * (x @ self.w_in.T + z @ self.w_rec.T - w), w)

    def closed_form(self) -> Derivatives:
        return InClosedForm(self)


class InClosedForm(Derivatives):
    """The step, differentiated by hand; not used by a subclass with another step."""

    terms = (Term("membrane"), Term("adaptation", "lower a and b", "lengthen tau_w"), Term("recurrence"))
    reads_input = False

    def __init__(self, cell: SEadLIF) -> None:
        self.cell = cell

    def by_state(self, x: Tensor, state: SEadLIFState) -> dict[str, Tensor]:
        c, s, z = self.cell, self.cell.spike_derivative(state), self.cell.output(state).detach()
        kept, slow, n, one = c.decay_v, torch.exp(-1 / c.tau_w), c.n_hidden, torch.ones_like(z)
        d, _, r = c.reset.derivatives(one, state.u, z, one)
        by_u = (1 - slow) * 120 * (c.a * (d - r * s) + c.b * s)  # of the next w
        adaptation = torch.cat((torch.diag_embed(by_u), torch.diag_embed(slow.expand_as(s))), -1)
        return {
            "membrane": nn.functional.pad(torch.diag_embed(kept * (d - r * s)), (0, n, 0, n)),
            "adaptation": torch.cat((-(1 - kept)[:, None] * adaptation, adaptation), -2),
            "recurrence": nn.functional.pad((1 - kept)[:, None] * c.w_rec * s.unsqueeze(-2), (0, n, 0, n)),
        }

    def by_input(self, x: Tensor, state: SEadLIFState) -> Tensor:
        return nn.functional.pad((1 - self.cell.decay_v)[:, None] * self.cell.w_in, (0, 0, 0, self.cell.n_hidden))[None]

    def of_output(self, state: SEadLIFState) -> Tensor:
        return nn.functional.pad(torch.diag_embed(self.cell.spike_derivative(state)), (0, self.cell.n_hidden))


if __name__ == "__main__":
    torch.manual_seed(0)
    network = neurolsc.Network([SEadLIF(784, 64), SEadLIF(64, 64)], 10).double()
    digits, held_out = map(SpikeLatencyMNIST.embedded, ("train", "validation"))
    batches = input_batches(digits, 64)
    found = []
    for closed_form in (neurolsc.Cell.closed_form, SEadLIF.closed_form):  # the first is none: by autograd
        SEadLIF.closed_form = closed_form
        profile = neurolsc.radius_profile(network, batches[0][:, :4], steps=8)
        found.append(torch.stack((profile.time, profile.depth)))
    torch.testing.assert_close(*found, rtol=1e-10, atol=0)
    print(result := neurolsc.pretrain(network.float(), batches, target=1, progress=False))
    result.plot(*sys.argv[1:], title="2 x 64 SEadLIF, spike-latency MNIST, seed 0")
    best = neurolsc.train(network, digits, held_out, epochs=2, lr=1e-2, progress=False).best
    print(f"mode accuracy {best['validation_mode_accuracy']:.0%}, spikes per step {best['firing_rate'][-1]:.2f}")
    with tempfile.NamedTemporaryFile() as file:
        neurolsc.save(network, file.name)
        assert torch.equal(neurolsc.load(file.name)(batches[0]), network(batches[0]))
    command = "-m neurolsc radii --cell your_own_neuron:SEadLIF --width 64 --tau-v 15 --reset zero"
    subprocess.run([sys.executable, *command.split()], cwd=Path(__file__).parent, check=True)
