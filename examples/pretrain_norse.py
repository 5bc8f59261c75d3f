"""Can one added call make a norse network stable, when its time constants hold it unstable? Takes
20 s on a CPU."""

import sys
import warnings

import torch
from torch import nn

import neurolsc
from neurolsc.datasets import SpikeLatencyMNIST, input_batches

warnings.filterwarnings("ignore", category=DeprecationWarning)  # norse's import uses torch.jit.script
import norse.torch as norse  # noqa: E402

WIDTH, TARGET, SEED = 48, 0.5, 0

torch.manual_seed(SEED)
net = norse.SequentialState(norse.LIFRecurrent(784, WIDTH), norse.LIFRecurrent(WIDTH, WIDTH), nn.Linear(WIDTH, 10))
batches = [x.float() for x in input_batches(SpikeLatencyMNIST.embedded("train"), 32, seed=SEED)]
network = neurolsc.wrap(net)
print(f"as norse makes it\n{neurolsc.radius_profile(network, batches[0][:, :4], steps=16)}\n")

result = neurolsc.pretrain(network, batches, target=TARGET, seed=SEED, max_steps=100, progress=False)  # the added call

print(result)
layer = net[0]
tau_mem, tau_syn = (1e3 / rate.item() for rate in (layer.p.tau_mem_inv, layer.p.tau_syn_inv))
print(f"\nthe first layer's time constants were 10 and 5 ms and are now {tau_mem:.1f} and {tau_syn:.1f} ms")
assert result.converged
assert not layer.recurrent_weights.diagonal().any()  # no self-connections, as before
logits, _ = net(batches[0])
torch.testing.assert_close(network(batches[0]), logits)

result.plot(*sys.argv[1:], title=f"2 x {WIDTH} LIFRecurrent of norse, spike-latency MNIST, seed {SEED}")
