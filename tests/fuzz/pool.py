"""Cases in processes of their own, with a limit on time and memory, many cases a process."""

import os
import pickle
import resource
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

HARD = 3 * 2**30
"""bytes beyond those of the parent that a process may ask for"""


class Outcome(NamedTuple):
    case: int
    kind: str
    """clean, same, other, raw, or how the process ended: time, killed"""
    said: str
    peak: int
    """bytes of memory beyond those before the case"""


def run(cases: int, do: Callable[[int], tuple[str, str]], *, seconds: float, first: int = 0) -> Iterator[Outcome]:
    """Do the cases one after the other in forked processes.

    A process that dies, or takes longer than the limit for a case, is replaced, and goes on with
    the next case.
    """
    at = first
    while at < first + cases:
        yield from _process(range(at, first + cases), do, seconds)
        at = _process.next  # type: ignore[attr-defined]


def _process(cases: range, do: Callable[[int], tuple[str, str]], seconds: float) -> Iterator[Outcome]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _child(cases, do, write)
    os.close(write)
    case, data, ended = cases.start, b"", False
    try:
        with os.fdopen(read, "rb", buffering=0) as pipe:
            since = time.monotonic()
            while case < cases.stop:
                left = since + seconds - time.monotonic()
                if not select.select([pipe], [], [], max(left, 0))[0]:
                    os.kill(child, signal.SIGKILL)
                    yield Outcome(case, "time", f"over {seconds:g} s", 0)
                    case, ended = case + 1, True
                    break
                more = pipe.read(2**16)
                if not more:
                    status = os.waitpid(child, 0)[1]
                    child = 0
                    yield Outcome(case, "killed", f"by signal {os.WTERMSIG(status)}", 0)
                    case, ended = case + 1, True
                    break
                data += more
                while len(data) >= 4 and len(data) >= (size := 4 + int.from_bytes(data[:4], "little")):
                    yield Outcome(*pickle.loads(data[4:size]))
                    case, data, since = case + 1, data[size:], time.monotonic()
    finally:
        if child:
            if not ended:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    _process.next = case  # type: ignore[attr-defined]


def _child(cases: range, do: Callable[[int], tuple[str, str]], write: int) -> None:
    try:
        limit = memory("VmData") + HARD
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        for case in cases:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # the peak starts anew
            before = memory("VmRSS")
            kind, said = do(case)
            data = pickle.dumps((case, kind, said[:300], max(memory("VmHWM") - before, 0)))
            os.write(write, len(data).to_bytes(4, "little") + data)
    finally:
        os._exit(0)


def memory(name: str) -> int:
    """A number of bytes that the kernel says of this process."""
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(name))
