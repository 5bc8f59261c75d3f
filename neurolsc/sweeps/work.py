"""What a worker does with a trial: all that is still to be done for it, and no more."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from neurolsc.devices import usable
from neurolsc.experiment import Experiment, score
from neurolsc.locks import alone
from neurolsc.network import Network
from neurolsc.runs import write_json
from neurolsc.stability.constants import time_constants
from neurolsc.sweeps.start import environment, finite, statistics
from neurolsc.sweeps.trial import Trial

Answer = Literal["over", "busy"]
"""Whether a trial is over, finished or failed, or another process is at it."""
BEFORE, AFTER, TEST = "before_training.json", "after_training.json", "test.json"
EXPECTED = (ArithmeticError, ValueError, RuntimeError)
"""what a trial may come to by its settings: a loss that diverges, settings that do not fit, radii
that are not found"""


@dataclass(frozen=True)
class Job:
    """A trial to be brought to its end."""

    trial: Trial
    sweep: Path
    test: bool
    """whether it is to be scored on the test set, too"""
    device: str = "cpu"
    """where its network runs"""

    def is_over(self) -> bool:
        """Whether nothing is left to be done."""
        finished = self.trial.folder(self.sweep)
        done = (finished / TEST).exists() if self.test else finished.exists()
        return done or self.trial.failure(self.sweep).exists()

    def run(self) -> Answer:
        """Do what is left to be done; go on where an earlier worker was stopped.

        An error that comes of the settings is noted and ends the trial; any other is raised.

        Raises:
            ValueError: if torch cannot use the device.
        """
        usable(self.device)  # that there is none is no fault of the trial
        folder = self.trial.folder(self.sweep)
        try:
            if not folder.exists():
                _run(replace(self.trial.experiment, device=self.device), folder)
            if self.test:
                with alone(folder):
                    if not (folder / TEST).exists():
                        score(folder, "test", device=self.device)
        except BlockingIOError:
            return "busy"
        except FileExistsError:
            return "over" if self.is_over() else "busy"
        except EXPECTED as error:
            self.fail(f"{type(error).__name__}: {error}")
        return "over"

    def fail(self, what: str) -> None:
        """Note that the trial came to an error."""
        write_json(self.trial.failure(self.sweep), {"error": what, "environment": environment(self.device)})


def _run(experiment: Experiment, folder: Path) -> None:
    def look(network: Network, unfinished: Path) -> None:
        if not (unfinished / BEFORE).exists():  # else this goes on after a stop
            told = {"environment": environment(experiment.device), "statistics": statistics(network, experiment)}
            write_json(unfinished / BEFORE, told)

    def look_back(network: Network, unfinished: Path) -> None:
        write_json(unfinished / AFTER, {"time_constants": _time_constants(network)})

    experiment.run(folder, look=look, look_back=look_back, progress=False)


def _time_constants(network: Network) -> dict[str, list[float | None]]:
    """In steps, a layer each, by the neurons' mean decay; of cells that have some."""
    told: dict[str, list[float | None]] = {}
    for cell in network.cells:
        for constant in time_constants(cell):
            told.setdefault(constant.name, []).append(finite(constant.steps))
    return told
