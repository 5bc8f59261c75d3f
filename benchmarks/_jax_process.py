"""A process of the environment that has jax (`make peers-env`), asked by lines of JSON."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

ENVIRONMENT = Path(__file__).parent.parent / ".peers-env"


def at_hand(who: str) -> bool:
    """Whether there is such an environment; where there is none, a line says who stays out."""
    if (ENVIRONMENT / "bin/python").exists():
        return True
    print(f"{who} do not take part: there is no .peers-env (make peers-env).", flush=True)
    return False


class JaxProcess:
    """A script that answers each line of its input by one of its output.

    Args:
        script: its name in this folder.
        arguments: what it is given.
        wide: whether its numbers have float64.
    """

    def __init__(self, script: str, *arguments: str | Path, wide: bool = False) -> None:
        command = [ENVIRONMENT / "bin/python", Path(__file__).parent / script, *arguments]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"JAX_ENABLE_X64": str(int(wide))},
        )

    def ask(self, *what: str) -> Any:
        """The answer to one question."""
        assert self.process.stdin and self.process.stdout
        print(json.dumps(what), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self.process.communicate()
