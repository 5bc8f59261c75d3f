"""What is called inside of torch.inference_mode() and torch.no_grad(), and tensors that were made there."""

import copy

import pytest
import snntorch as snn
import torch
from spikingjelly.activation_based import layer, neuron
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from neurolsc import (
    Monitor,
    accelerate,
    diagnose,
    evaluate,
    initialize,
    load,
    pretrain,
    radius_profile,
    save,
    train,
    try_cures,
)
from neurolsc.export import from_nir, read_netx, to_netx, to_nir
from neurolsc.stability import backward_norms, parameter_gradients, singular_values, state_gradients
from tests.patterns import Patterns, small_network
from tests.test_monitor import B, Norse, SnnTorch, SpikingJelly, batch, own, slow
from tests.test_precision import SETTING, close, diagnosed, radii, rows

C, N, T = 4, 12, 16
OUTSIDE = [torch.no_grad, torch.inference_mode]


def with_states() -> nn.Sequential:
    """Leaky of snnTorch that keep their membranes, with a batch norm between."""
    first = snn.Leaky(0.9, init_hidden=True)
    last = snn.Leaky(0.9, init_hidden=True, output=True)
    return nn.Sequential(nn.Linear(N, 16), first, nn.BatchNorm1d(16), nn.Linear(16, C), last)


def nodes() -> nn.Sequential:
    """Nodes of spikingjelly, which keep their voltages."""
    first = neuron.LIFNode(v_threshold=0.4)
    return nn.Sequential(layer.Linear(N, 16), first, layer.Linear(16, C), neuron.LIFNode(v_threshold=0.4))


EVERY = [own, with_states, nodes, *slow(SnnTorch, Norse, SpikingJelly)]


def made(make) -> nn.Module:
    torch.manual_seed(0)
    return make()


@pytest.mark.slow
@pytest.mark.parametrize("around", OUTSIDE)
@pytest.mark.parametrize("make", EVERY)
@pytest.mark.parametrize("measure", [radii, diagnosed, rows])
def test_a_module_is_measured_without_gradients_as_with_them(make, measure, around):
    net = made(make)
    wanted = measure(copy.deepcopy(net))
    with around():
        found = measure(net)
    close(found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("around", OUTSIDE)
@pytest.mark.parametrize("make", EVERY)
def test_cures_are_tried_without_gradients_as_with_them(make, around):
    net = made(make)
    wanted = try_cures(net, *batch(0), lr=1e-2, updates=2)
    with around():
        close(str(try_cures(net, *batch(0), lr=1e-2, updates=2)), str(wanted))


@pytest.mark.slow
@pytest.mark.parametrize("around", OUTSIDE)
@pytest.mark.parametrize("how", SETTING)
def test_what_is_set_without_gradients_can_be_trained(how, around):
    net = own()
    other = copy.deepcopy(net)
    SETTING[how](other, batch(0)[0])
    with around():
        SETTING[how](net, batch(0)[0])
    close(net.state_dict(), other.state_dict())
    assert not any(p.is_inference() for p in net.parameters())
    net(batch(0)[0]).sum().backward()
    torch.optim.Adam(net.parameters()).step()


@pytest.mark.parametrize("make", [with_states, nodes])
def test_modules_set_in_inference_mode_can_be_trained(make):
    x, y = batch(0)
    net = made(make)
    with torch.inference_mode():
        initialize(net, x, y, loss="count", lr=1e-3)
        pretrain(net, x, max_steps=2, steps=2, samples=2, progress=False)
    out = net(x[0])
    (out if isinstance(out, Tensor) else out[1]).sum().backward()
    torch.optim.Adam(net.parameters()).step()


@pytest.mark.parametrize("make", [with_states, nodes])
def test_states_that_a_run_in_inference_mode_has_left_are_no_obstacle(make):
    x, y = batch(0)
    net = made(make).eval()
    wanted = diagnosed(copy.deepcopy(net))
    with torch.inference_mode():
        for z in x:
            net(z)
    held = [value for part in net.modules() for value in vars(part).get("_memories", part._buffers).values()]
    assert any(isinstance(value, Tensor) and value.is_inference() for value in held)
    close(diagnosed(net), wanted)
    Monitor(net, x, y, loss="count", every=1).step(1.0)
    initialize(net, x, y, loss="count", lr=1e-3)


def test_half_precision_with_such_states_is_measured():
    net = nn.Sequential(nn.Linear(N, C), snn.Leaky(0.9, init_hidden=True)).bfloat16()
    wanted = radii(copy.deepcopy(net))
    with torch.inference_mode():
        net[1].mem = torch.zeros(B, C, dtype=torch.bfloat16)
    close(radii(net), wanted)


@pytest.mark.slow
def test_inputs_made_in_inference_mode_are_taken_outside_of_it():
    net = own()
    x, y = batch(0)
    wanted = diagnose(net, x, y, lr=1e-3).to_dict()
    with torch.inference_mode():
        x = x.clone()
        y = y.clone()
        mask = torch.ones(x.shape[:2], dtype=torch.bool)
    assert x.is_inference()
    close(diagnose(net, x, y, lr=1e-3).to_dict(), wanted)
    close(diagnose(net, (x, y), lr=1e-3).to_dict(), wanted)
    diagnose(net, (x, y, mask))

    def itself(items: list) -> tuple[Tensor, Tensor]:
        return x, y

    loader = DataLoader(TensorDataset(torch.arange(4)), batch_size=4, collate_fn=itself)
    for batches in ([(x, y)], loader):
        close(diagnose(net, batches, lr=1e-3).to_dict(), wanted)
    Monitor(net, x, y, every=1).step(1.0)
    assert radius_profile(net, x, steps=2).time.isfinite().all()

    def loss(out: Tensor) -> Tensor:
        return cross_entropy(out.mean(0), y.clone())

    for measured in (singular_values, backward_norms):
        measured(net, x)
    state_gradients(net, x, loss)
    parameter_gradients(net, x, loss)


@pytest.mark.parametrize("make", [own, with_states, nodes])
def test_parameters_made_in_inference_mode_are_one_clear_error(make):
    with torch.inference_mode():
        net = made(make)
    x, y = batch(0)
    wanted = "parameters of net, such as .*, were made inside of torch.inference_mode"
    for around in (torch.inference_mode, torch.enable_grad):
        with around():
            for call in (radius_profile, initialize, pretrain):
                with pytest.raises(ValueError, match=wanted):
                    call(net, x)
            with pytest.raises(ValueError, match=wanted):
                diagnose(net, x, y)
            with pytest.raises(ValueError, match=wanted):
                Monitor(net, x, y)


def test_training_and_files_leave_inference_mode_too(tmp_path):
    data = Patterns(16)
    net = small_network()
    save(net, tmp_path / "net")
    with torch.inference_mode():
        train(net, data, data, epochs=1, progress=False)
        evaluate(net, data)
        loaded = load(tmp_path / "net")
    assert not any(p.is_inference() for p in loaded.parameters())


@pytest.mark.parametrize("make", [own, with_states])
def test_files_for_chips_are_the_same(make, tmp_path):
    net = made(make).eval()
    x, _ = batch(0)
    to_netx(net, tmp_path / "outside.net", x)
    with torch.inference_mode():
        to_netx(net, tmp_path / "inside.net", x)
        model = read_netx(tmp_path / "inside.net")
        again = from_nir(to_nir(net, x=x, dt=1e-4))
    assert torch.equal(model.run(x).logits, read_netx(tmp_path / "outside.net").run(x).logits)
    assert not any(p.is_inference() for p in again.parameters())


@pytest.mark.parametrize("make", [with_states, SnnTorch])
def test_an_accelerated_module_runs_in_inference_mode_and_is_trained_after(make):
    x, _ = batch(0)
    example = x if make is SnnTorch else x[0]
    net = made(make)
    plain = copy.deepcopy(net)
    with torch.inference_mode():
        fast = accelerate(net, example)
        inside = fast(example)
    plain(example)
    del inside
    for each in (fast, plain):
        for part in each.modules():
            if hasattr(part, "reset_mem"):
                part.reset_mem()
        out = each(example)
        (out if isinstance(out, Tensor) else out[1]).sum().backward()
    for one, other in zip(fast.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
