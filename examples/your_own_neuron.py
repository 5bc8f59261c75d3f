"""How does a neuron of one's own enter? SE-adLIF in one file: radii, pre-training, training. Takes 40 s on a CPU."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import neurolsc
from neurolsc.datasets import SpikeLatencyMNIST, input_batches
from neurolsc.neurons import Answer, Derivatives, Positive, SpikingCell, Term


class SEadLIFState(NamedTuple):
    u: Tensor  # (B, N) potential, before the reset of its spike
    w: Tensor  # (B, N) adaptation current, one step ago


@neurolsc.register
class SEadLIF(SpikingCell):
    """Adaptive LIF, symplectic Euler: the current reads the potential of its own step. Baronig et al. 2024, eq. 12."""

    tau_w = Positive()
    answers = (
        Answer("w_in", "depth"),
        Answer("w_rec", "time"),
        Answer("tau_v", "time", through="decay"),
        Answer("tau_w", "time", through="decay"),
    )

    def __init__(self, n_in: int, n_hidden: int, *, tau_v: float = 10.0, reset: str = "zero", **options) -> None:
        super().__init__(n_in, n_hidden, tau_v=tau_v, reset=reset, **options)
        self.tau_w = torch.empty(n_hidden).uniform_(30, 120)
        self.a = nn.Parameter(torch.rand(n_hidden))
        self.b = nn.Parameter(2 * torch.rand(n_hidden))
        with torch.no_grad():
            self.w_in.mul_(20)  # the input enters by 1 - exp(-1/tau_v)

    def derivatives(self) -> Derivatives:
        return InClosedForm(self)

    def initial_state(self, batch: int) -> SEadLIFState:
        zero = torch.zeros(batch, self.n_hidden, **self.dtype_and_device)
        return SEadLIFState(zero, zero)

    def distance(self, state: SEadLIFState) -> Tensor:
        return state.u - 1

    def update(self, x: Tensor, z: Tensor, state: SEadLIFState) -> SEadLIFState:
        kept, slow = self.decay_v, torch.exp(-1 / self.tau_w)
        u = self.reset.carry(state.u, z, torch.ones_like(z))
        w = slow * state.w + (1 - slow) * (self.a * u + self.b * z)
        return SEadLIFState(kept * u + (1 - kept) * (x @ self.w_in.T + z @ self.w_rec.T - w), w)


class InClosedForm(Derivatives):
    """The same step, differentiated by hand."""

    terms = (Term("leak"), Term("adaptation", "lower a and b", "lengthen tau_w"), Term("recurrence"))
    reads_input = False

    def __init__(self, cell: SpikingCell) -> None:
        self.cell = cell

    def by_state(self, x: Tensor, state: SEadLIFState) -> dict[str, Tensor]:
        c, s, z = self.cell, self.cell.spike_derivative(state), self.cell.output(state).detach()
        kept, slow = c.decay_v, torch.exp(-1 / c.tau_w)
        d, _, r = c.reset.derivatives(torch.ones_like(kept), state.u, z, torch.ones_like(z))
        du = d - r * s  # of the potential after the reset
        dw = (1 - slow) * (c.a * du + c.b * s)
        zero, n = torch.zeros_like(s), c.n_hidden
        recurrence = ((1 - kept)[:, None] * c.w_rec) * s.unsqueeze(-2)
        return {
            "leak": torch.diag_embed(torch.cat((kept * du, zero), 1)),
            "adaptation": torch.cat(
                [torch.cat([torch.diag_embed(p.expand_as(s)) for p in row], -1)
                 for row in ((-(1 - kept) * dw, -(1 - kept) * slow), (dw, slow))], -2
            ),
            "recurrence": nn.functional.pad(recurrence, (0, n, 0, n)),
        }  # fmt: skip

    def by_input(self, x: Tensor, state: SEadLIFState) -> Tensor:
        weights = (1 - self.cell.decay_v)[:, None] * self.cell.w_in
        return nn.functional.pad(weights, (0, 0, 0, self.cell.n_hidden)).unsqueeze(0)

    def of_output(self, state: SEadLIFState) -> Tensor:
        return nn.functional.pad(torch.diag_embed(self.cell.spike_derivative(state)), (0, self.cell.n_hidden))


class ByAutograd(SEadLIF):
    """Without the closed form."""

    derivatives = neurolsc.Cell.derivatives


def main() -> None:
    torch.manual_seed(0)
    network = neurolsc.Network([SEadLIF(784, 64), SEadLIF(64, 64)], 10).double()
    plain = neurolsc.Network([ByAutograd(784, 64), ByAutograd(64, 64)], 10).double()
    plain.load_state_dict(network.state_dict())
    digits = SpikeLatencyMNIST.embedded("train")
    batches = input_batches(digits, 64)
    closed, autograd = (neurolsc.radius_profile(n, batches[0][:, :4], steps=8) for n in (network, plain))
    for a, b in ((closed.time, autograd.time), (closed.depth, autograd.depth)):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    print(neurolsc.pretrain(network.float(), batches, target=0.5, progress=False))
    result = neurolsc.train(
        network, digits, SpikeLatencyMNIST.embedded("validation"), epochs=2, lr=1e-2, progress=False
    )
    print(f"validation mode accuracy {result.history[-1]['validation_mode_accuracy']:.1%}")
    with tempfile.TemporaryDirectory() as folder:
        neurolsc.save(network, f"{folder}/network.safetensors")
        again = neurolsc.load(f"{folder}/network.safetensors")
    assert torch.equal(again(batches[0]), network(batches[0]))
    command = ["-m", "neurolsc", "radii", "--cell", f"{Path(__file__).stem}:SEadLIF", "--width", "64"]
    subprocess.run([sys.executable, *command], env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)}, check=True)


if __name__ == "__main__":
    main()
