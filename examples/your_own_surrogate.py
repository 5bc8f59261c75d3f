"""How do I add a surrogate, and is the radius' closed form right for it too? Takes 6 s on a CPU."""

import sys

import torch
from torch import Tensor

from neurolsc import ALIFPlus, Network, pretrain, spectral_radius
from neurolsc.datasets import SpikeLatencyMNIST, input_batches
from neurolsc.plots import plot_surrogates
from neurolsc.surrogate import FastSigmoid, Gaussian, Surrogate, Triangular

WIDTH, TARGET, SEED = 48, 0.5, 0


class Parabola(Surrogate):
    """f(x) = max(0, 1 - x²): two methods, the shape and the odd function whose derivative it is."""

    def shape(self, x: Tensor) -> Tensor:
        return (1 - x**2).clamp(min=0)

    def shape_integral(self, x: Tensor) -> Tensor:
        inside = x.clamp(-1, 1)
        return inside - inside**3 / 3


torch.manual_seed(SEED)
spike = Parabola(dampening=0.5, sharpness=1.0)
v = torch.linspace(-2, 2, 401, dtype=torch.float64, requires_grad=True)
(by_autograd,) = torch.autograd.grad(spike(v).sum(), v)
print(f"gradient of a spike: closed form and autograd differ by {(by_autograd - spike.derivative(v)).abs().max():.1e}")
assert torch.allclose(by_autograd, spike.derivative(v))

# The derivative of one step by the state before it: the sum of the cell's named terms, and the same
# by autograd.
cell = ALIFPlus(8, 5, spike=spike).double()
x, h = torch.rand(1, 8, dtype=torch.float64), torch.rand(2, 5, dtype=torch.float64)
state = type(cell.initial_state(1))(h[:1], h[1:])


def step(v: Tensor, theta: Tensor) -> Tensor:
    return torch.cat(cell.step(x, type(state)(v, theta))[1], dim=1)


closed = sum(cell.derivatives().by_state(x, state).values()).squeeze(0)
blocks = torch.autograd.functional.jacobian(step, tuple(state))
dense = torch.cat([block.reshape(10, 5) for block in blocks], dim=1)
print(f"radius of one step: closed form {spectral_radius(closed):.12f}, autograd {spectral_radius(dense):.12f}")
assert torch.allclose(closed, dense)

network = Network([ALIFPlus(784, WIDTH, spike=Parabola()), ALIFPlus(WIDTH, WIDTH, spike=Parabola())], n_out=10)
batches = input_batches(SpikeLatencyMNIST.embedded("train"), 32, seed=SEED)
result = pretrain(network, batches, target=TARGET, seed=SEED, samples=2, progress=False)
print(result)
assert result.converged

ours = {type(f).__name__: f for f in (Parabola(), Triangular(), Gaussian(), FastSigmoid())}
curves = {name: (f.derivative(v).detach(), f.primitive(v).detach()) for name, f in ours.items()}
plot_surrogates(v.detach(), curves, *sys.argv[1:], title="Parabola beside three of ours, dampening 0.5, sharpness 1")
