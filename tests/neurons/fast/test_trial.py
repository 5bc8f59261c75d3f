"""The kernels' trial at their first use on a device: passed, failed with one warning, and
remembered."""

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from neurolsc import LIF, ALIFPlus
from neurolsc.neurons.equations import Constants
from neurolsc.neurons.fast import fused, trial
from neurolsc.neurons.fast.inputs import Inputs
from tests.neurons.fast.both import assert_same, firing, gradients, loss_of, plainly, spikes

pytest.importorskip("triton", reason="Triton, of which the kernels are made, is not installed")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def first_use(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is known of any device, and the kernels suit this one."""
    monkeypatch.setattr(trial, "_passed", {})
    if DEVICE.type == "cpu":
        monkeypatch.setattr(fused, "suits", lambda *_: True)
    yield


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The passes by kernels outside the trial, as they come."""
    names: list[str] = []
    for name in ("forward", "reverse"):
        real = getattr(fused, name)

        def noted(plan: Any, *args: Any, name: str = name, real: Any = real) -> Any:
            if not plan.spike.learnable:  # as that of the trial is
                names.append(name)
            return real(plan, *args)

        monkeypatch.setattr(fused, name, noted)
    return names


def gone_through(kind: Any = ALIFPlus) -> None:
    """A layer forward and back, equal to plain steps."""
    cell = firing(kind, 7, 5).to(DEVICE)
    x, found = spikes(4, 3, 7).to(DEVICE), []
    for way in (lambda *a: cell.run(*a), lambda *a: plainly(cell, *a)):
        z, state = way(x, cell.initial_state(3))
        assert z.any()
        found.append([z, *state, *gradients(loss_of(z, state), list(cell.parameters()))])
    assert torch.equal(found[0][0], found[1][0])
    assert_same(*found, rtol=2e-5)


def test_kernels_that_are_right_pass_once_and_are_used(launches, monkeypatch):
    tried, real = [], trial._fault
    monkeypatch.setattr(trial, "_fault", lambda device: (tried.append(device), real(device))[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in (ALIFPlus, LIF, ALIFPlus):
            gone_through(kind)
    assert tried == [DEVICE]
    assert launches == 3 * ["forward", "reverse"]


def wrong_spikes(real: Any) -> Any:
    def forward(*args: Any) -> Any:
        trace, end, finite = real(*args)
        trace.z[-1, 0, 0] = 1 - trace.z[-1, 0, 0]
        return trace, end, finite

    return forward


def wrong_states(real: Any) -> Any:
    def forward(*args: Any) -> Any:
        trace, end, finite = real(*args)
        end[0].mul_(1.1)
        return trace, end, finite

    return forward


def fails(real: Any) -> Any:
    def kernel(*args: Any) -> Any:
        raise RuntimeError("out of registers")

    return kernel


def wrong_field(name: str) -> Callable[[Any], Any]:
    def change(real: Any) -> Any:
        def reverse(*args: Any) -> Any:
            found = real(*args)
            if name in found._fields:
                return found._replace(**{name: scaled(getattr(found, name))})
            return found._replace(c=found.c._replace(**{name: scaled(getattr(found.c, name))}))

        return reverse

    return change


def scaled(gradient: Any) -> Any:
    if isinstance(gradient, tuple):
        return tuple(scaled(each) for each in gradient)
    return None if gradient is None else gradient * 1.05


BROKEN = [
    ("forward", wrong_spikes, "spikes"),
    ("forward", wrong_states, "states"),
    ("forward", fails, "RuntimeError: out of registers"),
    ("reverse", fails, "RuntimeError: out of registers"),
    ("reverse", wrong_field("w_rec"), "gradients"),
    *(
        pytest.param("reverse", wrong_field(name), "gradients", marks=pytest.mark.slow)
        for name in (*Inputs._fields, *Constants._fields)
        if name not in ("c", "w_rec")
    ),
]


@pytest.mark.parametrize(("name", "change", "told"), BROKEN)
def test_kernels_that_are_wrong_are_left_with_one_warning(name, change, told, launches, monkeypatch):
    monkeypatch.setattr(fused, name, change(getattr(fused, name)))
    with pytest.warns(RuntimeWarning, match=f"kernels of spiking layers are not used on {DEVICE}.*{told}") as caught:
        gone_through()
        gone_through(LIF)
    assert len(caught) == 1
    assert not launches


def test_kernels_made_for_another_reset_are_found(monkeypatch):
    real = fused._kind

    def swapped(c: Any, reset: Any) -> dict[str, bool]:
        return real(c, reset) | {"ZERO": False}

    monkeypatch.setattr(fused, "_kind", swapped)
    with pytest.warns(RuntimeWarning, match="ZeroReset"):
        gone_through()


def test_a_fault_of_one_device_says_nothing_of_another(monkeypatch):
    faults = {torch.device("cuda", 0): "differ", torch.device("cuda", 1): None}
    monkeypatch.setattr(trial, "_fault", lambda device: faults[device])
    with pytest.warns(RuntimeWarning, match="cuda:0"):
        assert not trial.passed(torch.device("cuda", 0))
    assert trial.passed(torch.device("cuda", 1))
    assert not trial.passed(torch.device("cuda", 0))


def test_threads_try_once(monkeypatch):
    tried = []
    monkeypatch.setattr(trial, "_fault", lambda device: tried.append(device))
    threads = [threading.Thread(target=trial.passed, args=(DEVICE,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tried == [DEVICE]


def test_a_trial_minds_no_mode_and_takes_no_random_number():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with torch.inference_mode(), torch.autocast(DEVICE.type):
        assert trial.passed(DEVICE)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_trial_of_kernels_that_nobody_asks_for_is_not_made(monkeypatch):
    monkeypatch.setattr(fused, "suits", lambda *_: False)
    monkeypatch.setattr(trial, "_fault", None)
    cell = firing(ALIFPlus)
    assert cell.run(spikes(), cell.initial_state(3))[0].any()
