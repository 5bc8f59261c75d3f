"""What a run is made of: plain settings, from flags or a TOML file, each with its one verb.

Map: `network`, `data`, `start`, `pretraining` and `training` hold a kind of settings each, made of
fields of `setting`; `kinds` turns names and values into all of them, and back; `chips` has those
which make a network that can be exported.
"""

from neurolsc.config.chips import CHIPS, fitted
from neurolsc.config.data import DataSettings
from neurolsc.config.kinds import KINDS, Settings, as_dict, check_names, make
from neurolsc.config.network import NetworkSettings
from neurolsc.config.pretraining import PretrainSettings
from neurolsc.config.start import StartSettings
from neurolsc.config.training import TrainSettings

__all__ = [
    "CHIPS",
    "KINDS",
    "DataSettings",
    "NetworkSettings",
    "PretrainSettings",
    "Settings",
    "StartSettings",
    "TrainSettings",
    "as_dict",
    "check_names",
    "fitted",
    "make",
]
