"""A finished pre-training in a checkpoint, so that nobody has to repeat it."""

from dataclasses import asdict, fields
from typing import Any

from torch import Tensor

from neurolsc.network import Network
from neurolsc.neurons.derivatives import Term
from neurolsc.stability.findings import Finding
from neurolsc.stability.lsc.options import Options
from neurolsc.stability.lsc.result import PretrainResult
from neurolsc.stability.profile import RadiusProfile
from neurolsc.training.fingerprint import differences


def finished(network: Network, result: PretrainResult) -> dict[str, Any]:
    """The weights that a pre-training ended with, and its result, as a tree."""
    told = {f.name: getattr(result, f.name) for f in fields(result) if f.name != "options"}
    told["findings"] = [asdict(finding) for finding in result.findings]
    profile = {f.name: getattr(result.profile, f.name) for f in fields(RadiusProfile)}
    profile["terms"] = [[asdict(term) for term in terms] for terms in result.profile.terms]
    weights: dict[str, Tensor] = dict(network.state_dict())
    return {"ends": result.options.ends(), "network": weights, "result": told | {"profile": profile}}


def restored(network: Network, tree: dict[str, Any] | None, options: Options) -> PretrainResult | None:
    """Put the weights back and give the result; None of a run that is not over, or now goes on."""
    if tree is None or tree["ends"] != options.ends():
        return None
    told: dict[str, Any] = dict(tree["result"])
    profile = dict(told["profile"])
    profile["terms"] = tuple(tuple(Term(**term) for term in terms) for terms in profile["terms"])
    told["findings"] = tuple(Finding(**finding) for finding in told["findings"])
    network.load_state_dict(tree["network"])
    told |= {"profile": RadiusProfile(**profile), "options": options}
    return PretrainResult(**told)


def checked(state: object, keys: set[str], settings: dict[str, Any], path: object) -> dict[str, Any]:
    """The content of a checkpoint, if it is one of these keys and of a run with these settings.

    Raises:
        ValueError: if not; the message names the settings that differ.
    """
    if not isinstance(state, dict) or state.keys() != keys or not isinstance(state["settings"], dict):
        raise ValueError(f"{path} is not the checkpoint of such a pre-training.")
    if changed := differences(state["settings"], settings):
        raise ValueError(
            f"the checkpoint began with other settings ({changed}). Use the same settings, another file than {path}, "
            "or remove it."
        )
    return state
