"""LIF, ALIF+ and ALIF± as neurons of snnTorch, against snnTorch itself and against our cells."""

import copy
import inspect

import pytest
import snntorch as snn
import torch
from snntorch import functional as SF
from snntorch import utils
from snntorch.export_nir import export_to_nir
from snntorch.functional import probe
from torch import nn
from torch.autograd.functional import jacobian
from torch.testing import assert_close

from neurolsc import neurons
from neurolsc.interop.snntorch import LIF, ALIFPlus, ALIFPlusMinus, reset
from neurolsc.surrogate import FastSigmoid

N, B, T = 8, 3, 12
ADAPTIVE = (ALIFPlus, ALIFPlusMinus)
VIEWS = (LIF, *ADAPTIVE)
every_view = pytest.mark.parametrize("view", VIEWS)


def make(view=ALIFPlus, n=N, **settings):
    """A layer that fires under `currents`, and whose spikes move its thresholds."""
    if view is not LIF:
        signs = torch.ones(n) if view is ALIFPlus else torch.where(torch.arange(n) % 2 == 0, 1.0, -1.0)
        settings = {"adaptation": 0.2 * signs, "tau_theta": 20.0} | settings
    return view(**{"beta": 0.9, "linear_features": n} | settings)


def currents(steps=T, batch=B, n=N, *, seed=1, **like):
    drawn = torch.rand(steps, batch, n, generator=torch.Generator().manual_seed(seed))
    return drawn.to(torch.get_default_dtype()).to(**like)


def run(layer, x, states=()):
    """The states after every step, stacked (T, B, N) in output order; each step is passed those of the last."""
    after = []
    for frame in x:
        states = layer(frame, *states)
        after.append(states)
    stacked = tuple(torch.stack(leaves) for leaves in zip(*after, strict=True))
    assert stacked[0].sum() > 0
    return stacked


def our_cell(layer, *, reset_gradient=False):
    """Our cell with the same numbers; its input weights are the identity."""
    n = layer.linear_features
    cell = {LIF: neurons.LIF, ALIFPlus: neurons.ALIFPlus, ALIFPlusMinus: neurons.ALIFPlusMinus}[type(layer)](
        n, n, spike=layer.spike_grad, reset_gradient=reset_gradient
    )
    cell.tau_v = (-1 / layer.beta.log()).expand(n)
    with torch.no_grad():
        cell.w_in.copy_(torch.eye(n))
        cell.w_rec.copy_(layer.recurrent.weight)
        if isinstance(cell, neurons.LIF):
            cell.theta.copy_(layer.threshold)
        else:
            cell.tau_theta, cell.theta_rest = layer.tau_theta.detach(), layer.threshold
            cell.adaptation.copy_(layer.adaptation)
    return cell


@every_view
def test_s1_spikes_and_states_are_those_of_our_cell(view, float64):
    layer = make(view)
    cell, x = our_cell(layer), currents()
    states, state = run(layer, x), cell.initial_state(B)
    for t, frame in enumerate(x):
        z, state = cell.step(frame, state)
        assert torch.equal(states[0][t], z)
        assert_close(tuple(leaf[t] for leaf in states[1:]), tuple(reversed(state)))  # thr, mem
    named = dict(zip(layer.states, (leaf[0] for leaf in states), strict=True))
    assert_close(layer(x[1], **named), tuple(leaf[1] for leaf in states))


@every_view
def test_s2_hidden_states_give_the_same_bits_and_only_the_spikes(view):
    shown, hidden = make(view), make(view, init_hidden=True)
    both = make(view, init_hidden=True, output=True)
    for layer in (hidden, both):
        layer.load_state_dict(shown.state_dict())
    for frame, *states in zip(currents(), *run(shown, currents()), strict=True):
        assert torch.equal(hidden(frame), states[0])
        assert all(torch.equal(*pair) for pair in zip(both(frame), states, strict=True))
    with pytest.raises(TypeError, match="init_hidden=True"):
        hidden(currents()[0], mem=states[-1])


@every_view
def test_s3_states_are_empty_buffers_that_take_the_inputs_shape_dtype_and_device(view):
    layer = make(view)
    assert all(getattr(layer, name).shape == (0,) for name in layer.states)
    assert set(layer.states) <= set(dict(layer.named_buffers()))
    assert not set(layer.states) & set(layer.state_dict())
    assert all(state.shape == (B, N) for state in layer(currents()[0]))
    layer.double().reset_mem()
    assert all(state.dtype == torch.float64 for state in layer(currents(dtype=torch.float64)[0]))
    layer.to("meta").reset_mem()
    assert all(state.device.type == "meta" for state in layer(currents(device="meta", dtype=torch.float64)[0]))


@every_view
def test_s4_states_of_another_shape_and_what_cannot_be_are_refused(view):
    layer = make(view)
    states = layer(currents()[0])
    with pytest.raises(ValueError, match=r"mem must have the input's shape \(3, 8\), got \(3, 7\)"):
        layer(currents()[1], mem=torch.zeros(B, N - 1))
    with pytest.raises(ValueError, match=r"spk must have the input's shape \(2, 8\), got \(3, 8\)"):
        layer(currents(batch=2)[0], *states)
    if view is not LIF:
        with pytest.raises(TypeError, match=r"ALIFPlus.* are passed as layer\(input_, spk, thr, mem\)"):
            layer(currents()[1], states[0], states[-1])
    with pytest.raises(ValueError, match="threshold must be positive"):
        make(view, threshold=0.0)
    with pytest.raises(TypeError, match="needs linear_features"):
        view()
    assert layer(currents(batch=2)[0], *layer.reset_mem())[0].shape == (2, N)


@pytest.mark.parametrize("settings", [{}, {"init_hidden": True}, {"init_hidden": True, "output": True}], ids=str)
@pytest.mark.parametrize("mechanism", ["subtract", "zero", "none"])
def test_s1_the_lif_is_rleaky_bit_for_bit_also_where_the_batch_size_changes(settings, mechanism):
    layer = make(LIF, reset_mechanism=mechanism, **settings)
    theirs = snn.RLeaky(beta=0.9, linear_features=N, reset_mechanism=mechanism, **settings)
    with torch.no_grad():
        theirs.recurrent.weight.copy_(layer.recurrent.weight)
        theirs.recurrent.bias.zero_()
    fired = 0
    for x in (currents(6, 3), currents(6, 2), currents(6, 5), currents(6, 1).squeeze(1)):
        for frame in x:  # without states: those of the last call, from rest for another shape
            ours, other = ([out] if isinstance(out, torch.Tensor) else out for out in (layer(frame), theirs(frame)))
            assert all(torch.equal(a, b) for a, b in zip(ours, other, strict=True))
            fired += ours[0].sum()
    assert fired > 0


def test_s5_the_defaults_are_snntorchs():
    ours = inspect.signature(LIF).parameters
    theirs = inspect.signature(snn.LIF).parameters | inspect.signature(snn.RLeaky).parameters
    names = set(ours) & set(theirs)
    assert names >= {"beta", "linear_features", "threshold", "spike_grad", "init_hidden", "reset_mechanism", "output"}
    assert names >= {f"learn_{name}" for name in ("beta", "threshold", "recurrent", "graded_spikes_factor")}
    for name in names - {"beta"}:  # theirs has no default
        assert ours[name].default == theirs[name].default, name


@pytest.mark.parametrize("name", ["beta", "threshold", "graded_spikes_factor", "recurrent", "tau_theta", "adaptation"])
@every_view
def test_s5_what_is_learnt_is_a_parameter_with_a_gradient_and_the_rest_a_buffer(view, name):
    if view is LIF and name in ("tau_theta", "adaptation"):
        return
    full = "recurrent.weight" if name == "recurrent" else name
    fixed = make(view, **{f"learn_{name}": False})
    assert full in dict(fixed.named_buffers())
    assert full not in dict(fixed.named_parameters())
    assert full in fixed.state_dict()
    layer = make(view, **{f"learn_{name}": True})
    assert full not in dict(layer.named_buffers())
    sum(state.sum() for state in run(layer, currents())).backward()
    assert dict(layer.named_parameters())[full].grad.abs().sum() > 0


@every_view
def test_s9_our_reset_serves_nested_layers_of_the_given_net_alone(view):
    synaptic = snn.RSynaptic(alpha=0.8, beta=0.9, linear_features=N, init_hidden=True)
    inner = nn.Sequential(nn.Linear(N, N), make(view, init_hidden=True))
    net = nn.Sequential(nn.Linear(5, N), synaptic, nn.Sequential(inner, nn.Linear(N, N), make(view, init_hidden=True)))
    other = make(view, init_hidden=True)
    other(currents()[0])
    before = other.mem.clone()
    for _ in range(3):
        spikes = torch.stack([net(frame) for frame in 9 * currents(n=5)])
        assert spikes.sum() > 0
        spikes.sum().backward()  # through no state of the round before
        reset(net)
    assert not synaptic.spk.any() and not synaptic.syn.any()
    assert not inner[1].spk.any() and not inner[1].mem.any()
    assert torch.equal(other.mem, before) and before.any()


@every_view
def test_s10_class_methods_cover_all_states_of_all_instances(view):
    layers = [make(view, learn_threshold=True) for _ in range(2)]
    for layer in layers:
        run(layer, currents())
    before = [[getattr(layer, name).clone() for name in layer.states] for layer in layers]
    view.detach_hidden()
    for layer, values in zip(layers, before, strict=True):
        states = [getattr(layer, name) for name in layer.states]
        assert not any(state.requires_grad for state in states)
        assert all(torch.equal(*pair) for pair in zip(states, values, strict=True))
    view.reset_hidden()  # snnTorch's
    assert not any(getattr(layer, name).numel() for layer in layers for name in layer.states)


def reduced(layer, x, thr, mem):
    """The step in the state of our cells: the spikes are a function of voltage and threshold."""
    if type(layer) is LIF:
        return layer(x, layer.spike_grad(mem - layer.threshold), mem)[1]
    _, after_thr, after_mem = layer(x, layer.spike_grad(mem - thr), thr, mem)
    return torch.cat((after_mem, after_thr))


@pytest.mark.parametrize("reset_gradient", [False, True])
@every_view
def test_s11_the_jacobian_of_a_step_is_the_closed_form(view, reset_gradient, float64):
    layer = make(view, spike_grad=FastSigmoid(), reset_gradient=reset_gradient)
    cell = our_cell(layer, reset_gradient=reset_gradient)
    x, thr, mem = torch.rand(N), 1 + torch.rand(N), 3 * torch.rand(N)
    assert (mem > thr).any()
    if view is LIF:
        ours = jacobian(lambda m: reduced(layer, x, None, m), mem)
        state = neurons.LIFState(mem[None])
    else:
        by_thr, by_mem = jacobian(lambda th, m: reduced(layer, x, th, m), (thr, mem))
        ours = torch.cat((by_mem, by_thr), 1)
        state = neurons.ALIFState(mem[None], thr[None])
    assert_close(ours, sum(cell.derivatives().by_state(None, state).values())[0])


def test_s11_the_detached_term_leaves_no_derivative_by_the_threshold_where_snntorch_does(float64):
    theirs = snn.RLeaky(beta=0.9, linear_features=N, learn_threshold=True).double()
    layers = [make(LIF, learn_threshold=True, reset_gradient=g) for g in (False, True)]
    by_threshold = []
    for layer in (*layers, theirs):  # snnTorch's own spikes of a step are float32: its recurrence cannot read them
        after = layer(torch.zeros(1, N), torch.ones(1, N), torch.full((1, N), 2.0))[1]
        by_threshold += torch.autograd.grad(after.sum(), layer.threshold, materialize_grads=True, allow_unused=True)
    assert [gradient.item() for gradient in by_threshold] == [0.0, -N, -N]


@every_view
def test_s13_a_reset_set_later_or_loaded_is_the_one_that_acts(view):
    subtract, zero = make(view), make(view, reset_mechanism="zero")
    zero.recurrent.load_state_dict(subtract.recurrent.state_dict())
    expected = run(zero, currents())
    assert not torch.equal(run(subtract, currents())[-1], expected[-1])
    loaded, changed = make(view), copy.deepcopy(make(view))
    loaded.load_state_dict(zero.state_dict())
    changed.recurrent.load_state_dict(subtract.recurrent.state_dict())
    changed.reset_mechanism = "zero"
    for layer in (loaded, changed):
        assert layer.reset_mechanism == "zero"
        for ours, other in zip(run(layer, currents()), expected, strict=True):
            assert torch.equal(ours, other)


def test_s15_a_network_of_views_learns_with_snntorchs_losses_and_is_probed():
    layers = make(init_hidden=True), make(n=3, init_hidden=True, output=True)
    net, loss = nn.Sequential(nn.Linear(10, N), layers[0], nn.Linear(N, 3), layers[1]), SF.ce_rate_loss()
    spikes = probe.OutputMonitor(net, instance=type(net[1]))
    voltages = probe.AttributeMonitor("mem", False, net, instance=type(net[1]))
    labels = torch.arange(12) % 3
    x = 3 * nn.functional.one_hot(labels, 10).float()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    losses = []
    for _ in range(15):
        utils.reset(net)
        out = torch.stack([net(x)[0] for _ in range(10)])
        losses.append(loss(out, labels))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]
    assert len(spikes["1"]) == len(voltages["1"]) == 150
    assert spikes["1"][-1].shape == voltages["1"][-1].shape == (12, N)
    spikes.remove_hooks()
    voltages.remove_hooks()


@every_view
def test_s16_no_view_is_exported_as_a_plain_lif(view):
    net = nn.Sequential(nn.Linear(5, N), make(view, init_hidden=True))
    with pytest.raises(AttributeError, match="all_to_all"):
        export_to_nir(net, torch.rand(1, 5))


@pytest.mark.parametrize("kind", [LIF, ALIFPlus])
def test_reset_mem_returns_the_rest_of_the_last_shape_as_snntorchs_does(kind):
    theirs, layer = snn.RLeaky(beta=0.9, linear_features=N), kind(beta=0.9, linear_features=N, threshold=2.0)
    for module in (theirs, layer):
        assert {tuple(state.shape) for state in module.reset_mem()} == {(0,)}
        module(torch.ones(3, N))
        assert {tuple(state.shape) for state in module.reset_mem()} == {(3, N)}
    rest = dict(zip(layer.states, layer.reset_mem(), strict=True))
    for name, state in rest.items():
        assert torch.equal(state, torch.full((3, N), 2.0 if name == "thr" else 0.0))
    assert layer(torch.ones(5, N), *rest.values())[0].shape == (5, N)  # of another batch, as in snnTorch
    with pytest.raises(ValueError, match="must have the input's shape"):
        layer(torch.ones(5, N), *(torch.zeros(3, N) for _ in rest))


def test_a_learnt_threshold_takes_part_in_every_run_after_a_reset():
    """A rest that the layer stored would be of the threshold before the optimizer's step."""
    layer = ALIFPlus(beta=0.9, linear_features=N, learn_threshold=True)
    for _ in range(2):
        states = layer.reset_mem()
        sent = layer(torch.ones(3, N), *states)
        sent[1].sum().backward()
        with torch.no_grad():
            layer.threshold += 1
    assert layer.reset_mem()[1].unique().item() == 3
