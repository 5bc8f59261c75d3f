"""A neuron that notes in a file each time that one is made, and can kill its process."""

import os
import signal
from pathlib import Path
from typing import Any

from neurolsc import LIF


class Counted(LIF):
    """One line of COUNTED for every one, with the process that made it."""

    def __init__(self, n_in: int, n_hidden: int, **settings: Any) -> None:
        super().__init__(n_in, n_hidden, **settings)
        with open(os.environ["COUNTED"], "a") as file:
            file.write(f"{os.getpid()}\n")

    def run(self, *given: Any, **named: Any) -> Any:
        """A run in which the process dies once there is a file DEADLY, which it removes."""
        deadly = Path(os.environ.get("DEADLY", "nowhere"))
        if self.training and deadly.exists():
            deadly.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(*given, **named)
