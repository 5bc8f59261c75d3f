"""What is wrong with a network's radii or rates, by name, and what to change."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from neurolsc.network import Network
from neurolsc.neurons.derivatives import Term
from neurolsc.stability.profile import RadiusProfile, radius_profile

_UNKNOWN = Term("unknown")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, where, and what to change."""

    layer: int
    """counted from 1"""
    problem: str
    cure: str

    def __str__(self) -> str:
        return f"layer {self.layer}: {self.problem}; {self.cure}."


def diagnose(network: Network, x: Tensor, *, steps: int = 16, seed: int = 0) -> tuple[Finding, ...]:
    """Look at a network on an input before training.

    Found are dead layers, and radii that make gradients vanish or explode.

    Args:
        network: the network.
        x: input (T, B, n_in).
        steps: number of steps at which radii are measured.
        seed: of the draw of these steps.

    Returns:
        Findings: layers that never fire, layers that always fire, radii through time above 1, and
            radii of which time and
        depth together exceed 1 or stay below 0.1 (the sum at which Theorem 3 bounds the growth is
        1).

    Source: arXiv:2308.12075, Theorems 1 and 3.
    """
    profile = radius_profile(network, x, steps=min(steps, x.shape[0]), seed=seed)
    found = list(dead_layers(profile))
    for i, (time, depth) in enumerate(zip(profile.time_mean.tolist(), profile.depth_mean.tolist(), strict=True)):
        held = held_by(profile, i)
        if profile.firing_rate[i] > 0.9:
            found.append(
                Finding(i + 1, f"fires {profile.firing_rate[i]:.2f} spikes per neuron and step", "raise the thresholds")
            )
        if time > 1.0 + 0.02:
            found.append(
                Finding(i + 1, f"radius {time:.2f} through time, above 1, held by the {held.name}", held.too_large)
            )
        elif time + depth > 1.0 + 0.04:
            problem = f"radii {time:.2f} through time and {depth:.2f} through depth sum to more than 1"
            found.append(Finding(i + 1, problem, "gradients grow exponentially with steps and layers together"))
        elif time + depth < 0.1:
            problem = f"radii {time:.2f} through time and {depth:.2f} through depth"
            found.append(Finding(i + 1, problem, "gradients vanish within a few steps; " + held.too_small))
    return tuple(found)


def dead_layers(profile: RadiusProfile) -> Iterable[Finding]:
    """The layers that did not fire at all."""
    for i, rate in enumerate(profile.firing_rate.tolist()):
        if rate == 0:
            cure = "lower the thresholds or raise the input weights; a target met by a dead layer says nothing"
            yield Finding(i + 1, "never fires", cure)


def missed_targets(
    profile: RadiusProfile,
    misses: Iterable[tuple[int, str, float, float]],
    standard_errors: tuple[list[float], list[float]],
) -> Iterable[Finding]:
    """Radii off target (layer, direction, mean, target), and which term holds those through time.

    Each is shown with the standard error of its mean, of which there is one per layer through time
    and through depth.
    """
    for layer, direction, mean, target in misses:
        error = standard_errors[direction == "depth"][layer]
        problem = f"radius {mean:.3f} ± {error:.3f} through {direction} against a target of {target:.3g}"
        if direction == "depth":
            what = "scale w_in " + ("down" if mean > target else "up") + ", or move the thresholds of the layer below"
            if mean == 0:
                what = "at exactly 0 no scale moves it: what the layer reads does not reach what it sends within a step"
            yield Finding(layer + 1, problem, what)
        else:
            held = held_by(profile, layer)
            share = profile.sources[layer].get(held.name)
            if share is not None:
                problem += f", held by the {held.name} at {share:.0%} of the points"
            yield Finding(layer + 1, problem, held.too_large if mean > target else held.too_small)


def wide_spread(profile: RadiusProfile, include_input: bool = True) -> Finding:
    """Where radii spread most, for a profile with means on target and a deviation that is not."""
    spread = {
        (layer, direction): radii[layer].std(correction=0).item()
        for direction, radii in (("time", profile.time), ("depth", profile.depth))
        for layer in range(len(radii))
        if include_input or direction == "time" or layer > 0
    }
    (layer, direction), widest = max(spread.items(), key=lambda item: item[1])
    problem = f"mean radii are on target, but those through {direction} spread by {widest:.2f}"
    return Finding(layer + 1, problem, "take more steps, soften the surrogate (sharpness), or allow a wider deviation")


def held_by(profile: RadiusProfile, layer: int) -> Term:
    """The term that contributes most to a layer's radius through time at most points.

    Unknown without a closed form.
    """
    sources = profile.sources[layer]
    if not sources:
        return _UNKNOWN
    most = max(sources, key=sources.__getitem__)
    return next((term for term in profile.terms[layer] if term.name == most), Term(most))
