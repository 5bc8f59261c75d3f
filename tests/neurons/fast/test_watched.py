"""What torch keeps private: where a version of it does not answer, plain steps are taken."""

import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules

from neurolsc import ALIFPlus
from neurolsc.neurons.fast.watched import watched
from neurolsc.surrogate import FastSigmoid
from tests.neurons.fast.both import assert_as_plain_steps, firing, spikes

pytestmark = pytest.mark.usefixtures("float64")

PRIVATE = [
    (torch._C._functorch, "peek_interpreter_stack"),
    (torch._C._functorch, "is_legacy_batchedtensor"),
    (torch._C, "_functorch"),
    (torch.autograd.forward_ad, "_current_level"),
    (torch._C, "_len_torch_dispatch_stack"),
    (torch.overrides, "_get_current_function_mode_stack"),
    (modules, "_has_any_global_hook"),
]


@pytest.mark.parametrize(("where", "name"), PRIVATE, ids=[name for _, name in PRIVATE])
def test_without_an_interface_of_torch_plain_steps_are_taken(where, name, monkeypatch):
    tensor, spike = torch.ones(2), FastSigmoid()
    assert not watched(spike, tensor)
    with monkeypatch.context() as patch:
        patch.delattr(where, name)
        assert watched(spike, tensor)
        if name not in (
            "_len_torch_dispatch_stack",
            "_has_any_global_hook",
            "_functorch",
            "_get_current_function_mode_stack",
        ):
            assert_as_plain_steps(firing(ALIFPlus), spikes(), loop=False)
    assert not watched(spike, tensor)


@pytest.mark.parametrize("name", ["_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"])
def test_without_a_modules_hooks_by_name_plain_steps_are_taken(name):
    spike = FastSigmoid()
    del spike.__dict__[name]
    assert watched(spike, torch.ones(2))


def test_a_spike_that_is_no_module_is_not_known():
    assert watched(torch.sigmoid, torch.ones(2))  # type: ignore[arg-type]


def test_tensors_and_parameters_are_ordinary():
    assert not watched(FastSigmoid(), None, torch.ones(2), nn.Parameter(torch.ones(2)))
