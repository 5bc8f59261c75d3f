"""Settings in, a run folder out: what commands, sweeps and benchmarks call.

A folder ``DIR`` holds a finished run. Until a run has finished, its folder is called ``DIR.partial``, is used by one
process alone, and holds the checkpoints from which the same run goes on.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import tomli_w
import torch
from torch import Tensor

from neurolsc.datasets import Words, collate, input_batches
from neurolsc.datasets.batches import InputBatches, Split, drawn_from, fetch
from neurolsc.diagnosis import Diagnosis, diagnose, try_cures
from neurolsc.diagnosis.faults import MISSING, of_labels
from neurolsc.experiment.config import (
    PARTS,
    TEXTS,
    DataSettings,
    InitSettings,
    NetworkSettings,
    PretrainSettings,
    TrainSettings,
    make,
    setting_names,
)
from neurolsc.experiment.former import init_report, read_settings, rename_files
from neurolsc.init import LSC, InitReport, named
from neurolsc.init.base import Chain
from neurolsc.io import (
    differences,
    load,
    lock_file,
    locked,
    remove_temporaries,
    save,
    write_csv,
    write_json,
    write_text,
)
from neurolsc.monitor import Monitor
from neurolsc.network import Network
from neurolsc.neurons.cell import CELLS, Cell
from neurolsc.stability import PretrainResult, RadiusProfile, radius_profile
from neurolsc.stability.conditions import Finding
from neurolsc.tasks import Classification
from neurolsc.training import Scores, TrainResult, evaluate, train
from neurolsc.validation import usable_device

SETTINGS = "settings.toml"
NETWORK = "network.safetensors"
UNFINISHED = ".partial"
INIT = "init.checkpoint"
PRETRAINING = "pretrain.checkpoint"
TRAINING = "train.checkpoint"
CHECKPOINTS = (INIT, PRETRAINING, TRAINING)
PROBE = 32  # training samples on which a monitor measures
INIT_BATCH = 32  # samples in a batch by which a network is initialised, or its radii are set
Say = Callable[[object], object]


class Stopped(KeyboardInterrupt):
    """Ctrl-C in a run that can go on; the message names its folder."""


def refuse_existing(path: Path) -> None:
    """Raise a ``FileExistsError`` if there is a folder, file or symbolic link in the place of a new folder."""
    if path.exists() or path.is_symlink():  # a link to nothing does not exist
        raise FileExistsError(f"{path} exists already; choose another folder.")


@contextlib.contextmanager
def run_folder(path: str | PathLike[str], settings: dict[str, Any]) -> Iterator[Path]:
    """Make a folder to work in, which gets its final name once the work is done.

    Until then it is ``<path>.partial``, which one process alone uses. That folder is yielded, and its checkpoints are
    removed at the end. If it exists already, a run was stopped in it: with the same settings the new run goes on from
    its checkpoints. A new run that fails before it has a checkpoint or a network leaves nothing.

    Args:
        path: folder of the finished run.
        settings: settings of the run; written to ``settings.toml``.

    Raises:
        FileExistsError: if the finished run exists.
        BlockingIOError: if another process or thread uses the folder.
        ValueError: if an unfinished run has other settings, or the path ends in ``.partial``.
        Stopped: for a KeyboardInterrupt after which the run can go on.
    """
    final = Path(path)
    if final.name.endswith(UNFINISHED):
        raise ValueError(f"{final} would be the name of an unfinished run: leave out {UNFINISHED}.")
    if not final.name:  # "." has no name to add to
        refuse_existing(final)
    partial = final.with_name(final.name + UNFINISHED)
    final.parent.mkdir(parents=True, exist_ok=True)
    with locked(final):
        refuse_existing(final)
        is_new = not partial.exists()
        partial.mkdir(exist_ok=True)
        remove_temporaries(partial)
        rename_files(partial)
        written = partial / SETTINGS
        if not written.exists():
            write_text(written, tomli_w.dumps(settings))
        elif changed := differences(read_settings(written), settings):
            raise ValueError(
                f"{partial} holds an unfinished run with other settings ({changed}). Use the same settings to "
                "go on, another folder, or remove it."
            )
        try:
            yield partial
        except BaseException as error:
            refused = isinstance(error, ValueError | TypeError)  # settings that do not fit
            if refused:  # a folder with the initialisation alone would refuse the mended settings
                worth_keeping = (PRETRAINING, TRAINING, NETWORK)
            else:
                worth_keeping = (*CHECKPOINTS, NETWORK)
            if not any((partial / name).exists() for name in worth_keeping):
                if is_new and partial.exists():  # somebody may have removed it, which is then the error
                    for entry in partial.iterdir():  # the settings go last, as they say of which run the files are
                        if entry.name == SETTINGS:
                            continue
                        if entry.is_dir():
                            shutil.rmtree(entry)
                        else:
                            entry.unlink()
                    shutil.rmtree(partial)
            elif isinstance(error, KeyboardInterrupt):
                raise Stopped(f"its checkpoints are in {partial}") from error
            raise
        for name in CHECKPOINTS:
            lock_file(partial / name).unlink(missing_ok=True)
            (partial / name).unlink(missing_ok=True)
        os.replace(partial, final)


def write_profile(profile: RadiusProfile, path: Path, title: str) -> None:
    """Draw a profile as ``<path>.png`` and write it as ``<path>.json``.

    The JSON file is written last: where it exists, the picture does too.
    """
    profile.plot(path.with_name(f"{path.name}.png"), title=title)
    write_json(path.with_name(f"{path.name}.json"), profile.to_dict())


@dataclass(frozen=True)
class Outcome:
    """What a run returns besides its files; None for what its settings leave out."""

    network: Network
    pretraining: PretrainResult | None
    training: TrainResult | None


@dataclass(frozen=True)
class Experiment:
    """The settings of a run, and the run itself.

    Attributes:
        network: the network.
        data: the data.
        pretraining: how radii are set; None, or a target 'none': they are left as they are.
        training: how the network is trained; None: it is not trained.
        init: how the network is initialised before radii and training; see :attr:`initialiser`.
        device: where the network runs, as torch calls it; not a setting.
    """

    network: NetworkSettings = NetworkSettings()
    data: DataSettings = DataSettings()
    pretraining: PretrainSettings | None = None
    training: TrainSettings | None = None
    init: InitSettings = InitSettings()
    device: str = "cpu"

    @classmethod
    def of(cls, run: str | PathLike[str]) -> "Experiment":
        """Return the experiment of a finished run, by its folder; ``ValueError`` if that holds no finished run."""
        folder = Path(run)
        if lacking := [name for name in (SETTINGS, NETWORK) if not (folder / name).exists()]:
            raise ValueError(f"{folder} is not the folder of a finished run: it has no {' and no '.join(lacking)}.")
        return cls.from_settings(read_settings(folder / SETTINGS))

    @classmethod
    def from_settings(
        cls, values: Mapping[str, Any], *, parts: Iterable[str] = PARTS, device: str = "cpu"
    ) -> "Experiment":
        """Return the experiment with these settings by name; missing ones take their default.

        Args:
            values: settings of all parts in one mapping.
            parts: parts of the experiment that are read from the values; other parts take their default.
            device: where it runs, as torch calls it.

        Raises:
            ValueError: if a value has the wrong type or is out of range.
        """
        settings: dict[str, Any] = {part: make(PARTS[part], values) for part in parts}
        return cls(**settings, device=device)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All settings as one flat dictionary, as they stand in a run folder, with the initialiser that is used."""
        settings = {}
        for name in PARTS:
            part = getattr(self, name)
            if part is not None:
                settings |= {f.name: getattr(part, f.name) for f in fields(part)}
        return settings | {"init": self.initialiser}

    @cached_property
    def name(self) -> str:
        """Name of its folder in a sweep: some of the settings that differ from their defaults, and a digest of all."""
        return self.name_with({})

    def name_with(self, other_names: Mapping[str, str]) -> str:
        """Return the :attr:`name` that an earlier version gave, in which some settings had other names.

        Args:
            other_names: the earlier name of a setting by its present name.
        """
        defaults = {f.name: f.default for kind in PARTS.values() for f in fields(kind)}
        changed = {}
        for name, value in self.settings.items():
            if value != defaults[name]:
                changed[other_names.get(name, name)] = value
        digest = hashlib.sha256(tomli_w.dumps(dict(sorted(changed.items()))).encode()).hexdigest()[:12]
        # values that may be long, such as paths: they are in the digest alone
        long = {*setting_names(["data"]), "weights"} - {"data"}
        hidden = {other_names.get(name, name) for name in long}
        words = ",".join(f"{name}={value}" for name, value in changed.items() if name not in hidden)
        # cut to 80 characters, as file systems limit the length of a name
        readable = re.sub(r"[^A-Za-z0-9.=,_-]+", "-", words)[:80].strip("-,.=")
        if readable:
            return f"{readable}-{digest}"
        return digest

    @property
    def lsc(self) -> LSC | None:
        """The LSC initialiser of these settings; None if there is none."""
        if self.pretraining is None:
            return None
        return self.pretraining.lsc

    @property
    def initialiser(self) -> str:
        """The initialiser of the network, as :func:`neurolsc.init.named` reads it.

        If the settings name none, it is ``Identity()``. There are three exceptions, in which it is ``Default``, which
        leaves the weights as they are built: weights that are read from a file, radii that are set to a target, and a
        cell that does not name the input matrix, voltage and threshold that Identity sets.
        """
        if self.init.init:
            return self.init.init
        try:
            cell = CELLS.find(self.network.cell)
        except ValueError:
            return "Identity()"  # any name serves for an unknown cell: building the network raises
        # a cell names voltage and threshold by overriding these two
        names_voltage = cell.thresholds is not Cell.thresholds and cell.membrane is not Cell.membrane
        names_inputs = any(parameter.radius == "depth" for parameter in cell.scaled_parameters)
        if self.network.weights or self.lsc is not None or not (names_voltage and names_inputs):
            return "Default"
        return "Identity()"

    @property
    def title(self) -> str:
        """Network, data and seed in one line, for pictures."""
        n = self.network
        network = f"{n.layers} x {n.width} {n.cell.rpartition(':')[2]}"
        if n.weights:
            network = f"network of {Path(n.weights).name}"
        return f"{network}, {self.data.title}, seed {n.seed}"

    def check(self) -> None:
        """Raise a ``ValueError`` for settings of network and data that fit no data; no file is read."""
        self.data.check()
        self.network.check(of_words=self.data.data in TEXTS)

    def build(self) -> Network:
        """Build the network before its initialisation, with the same weights on every device.

        Raises:
            ValueError: if it cannot be built, or does not fit the data.
        """
        training = self.data.load("train")
        words = None  # size of the vocabulary
        if isinstance(training, Words):
            words = training.n_words
        network = self.network.build(training.n_in, training.n_classes, words)
        if words is None and network.n_in != training.n_in:  # a network that was read from a file
            raise ValueError(
                f"the network of {self.network.weights} reads {network.n_in} inputs, and data = {self.data.data} have "
                f"{training.n_in}: give the data that it was made for."
            )
        if getattr(training, "steps", None) == 1 and network.layer_delay:
            raise ValueError(
                f"data = {self.data.data} last one step, in which no layer reads the one below unless layer_delay = 0."
            )
        return network.to(usable_device(self.device))

    def begin(self) -> tuple[Network, tuple[Finding, ...]]:
        """Build the network and initialise it.

        Returns:
            The network; and the :class:`neurolsc.init.InitReport`, or a tuple with a finding for every target that was
            missed. The tuple is empty for ``Default``.
        """
        network = self.build()
        if self.initialiser == "Default":
            return network, ()
        return network, named(self.initialiser).apply(network, self.input_batches(), seed=self.network.seed)

    def first_samples(self, split: Split, count: int) -> tuple[Tensor, ...]:
        """Return the first samples of a split: x (T, B, n_in), labels (B,), and a mask if lengths differ.

        Random changes of samples are drawn from the seed alone, here and in :meth:`drawn_samples`.
        """
        dataset = self.data.load(split)
        with drawn_from(self.network.seed):
            return collate(fetch(dataset, range(min(count, len(dataset)))))

    def drawn_samples(self, count: int) -> tuple[Tensor, ...]:
        """Draw training samples by the seed: x (T, B, n_in), labels (B,), and a mask if lengths differ."""
        data = self.data.load("train")
        generator = torch.Generator().manual_seed(self.network.seed)
        with drawn_from(self.network.seed):
            return collate(fetch(data, torch.randperm(len(data), generator=generator)[:count].tolist()))

    def first_inputs(self, split: Split, count: int) -> Tensor:
        """Return the inputs (T, B, n_in) of the first B = `count` samples, cut to the length of the shortest."""
        x, _, *mask = self.first_samples(split, count)
        if not mask:
            return x
        shortest = int(mask[0].sum(0).min())
        return x[:shortest]

    def input_batches(self) -> Sequence[Any]:
        """Return batches of inputs for the initialisation and for setting the radii.

        For the paper's loops the batches hold all training samples, and have the size of those in training.
        """
        training_data = self.data.load("train")
        if not self.reads_all:
            return input_batches(training_data, INIT_BATCH, seed=self.network.seed)
        size = (self.training or TrainSettings()).batch_size
        return InputBatches(training_data, size, seed=self.network.seed)

    @property
    def reads_all(self) -> bool:
        """True if radii are set by one of the paper's loops."""
        init = named(self.initialiser)
        if isinstance(init, Chain):
            initialisers = init.parts
        else:
            initialisers = (init,)
        return any(isinstance(part, LSC) and part.loop != "neurolsc" for part in (*initialisers, self.lsc))

    def run(
        self,
        out: str | PathLike[str],
        *,
        say: Say = lambda _: None,
        before_training: Callable[[Network, Path], object] = lambda *_: None,
        progress: bool = True,
        monitor: int = 0,
    ) -> Outcome:
        """Build the network, initialise it, set its radii, train it, and save all of that in a folder.

        Args:
            out: the folder; must not exist. A run that was stopped goes on.
            say: called with each finding of the initialisation, the result of pre-training, and the monitor after the
                training.
            before_training: called with the network, initialised and with its radii set, and with the folder of the
                unfinished run.
            progress: show bars.
            monitor: number of updates between two rows of a :class:`neurolsc.Monitor` on some training samples, whose
                rows and picture are files of the run; 0: no monitor.

        Raises:
            ValueError: if a setting is wrong, or an unfinished run has other settings.
            OSError: if the folder exists or another process uses it, or a file cannot be read or written.
            FloatingPointError: if the loss or the gradient becomes NaN or infinite; the best network until then is
                saved in the folder of the unfinished run.
        """
        seed = self.network.seed
        task = self.data.task
        pretraining = None
        training = None
        with run_folder(out, self.settings) as folder:
            device = usable_device(self.device)
            data: Any = ()
            if self.training:  # read now: data that cannot be read are an error before the work, not after it
                data = tuple(self.data.load(split) for split in ("train", "validation"))

            # The initialisation, unless it was done before the run was stopped.
            report = init_report(folder)
            if self.initialiser == "Default":
                network = self.build()
            elif (folder / INIT).exists():
                network = load(folder / INIT).to(device)
            else:
                began = time.perf_counter()
                network, reported = self.begin()
                seconds = time.perf_counter() - began
                if isinstance(reported, InitReport):
                    lines = str(reported).splitlines()
                else:
                    lines = [str(finding) for finding in reported]
                write_json(report, {"init": self.initialiser, "seconds": seconds, "findings": lines})
                save(network, folder / INIT)
            if report.exists():  # from this call, or from the one that was stopped
                for finding in json.loads(report.read_text())["findings"]:
                    say(finding)

            # The radii.
            if self.pretraining is not None and (lsc := self.lsc) is not None:
                if not (folder / "radii_before.json").exists():  # else they were measured before the run was stopped
                    x = self.first_inputs("train", self.pretraining.pretrain_samples)
                    steps = min(self.pretraining.pretrain_times, x.shape[0])
                    bar = None if progress else False  # None: a bar is shown if the work takes long
                    before = radius_profile(network, x, steps=steps, seed=seed, progress=bar)
                    write_profile(before, folder / "radii_before", f"{self.title}, before pre-training")
                with drawn_from(seed):  # a resumed run reads the same batches
                    pretraining = lsc.run(
                        network, self.input_batches(), seed=seed, checkpoint=folder / PRETRAINING, progress=progress
                    )
                write_profile(pretraining.profile, folder / "radii_after", f"{self.title}, after pre-training")
                content = {name: getattr(pretraining, name) for name in ("converged", "steps", "seconds", "history")}
                content["findings"] = [str(finding) for finding in pretraining.findings]
                write_json(folder / "pretraining.json", content)
                if lsc.method != "scale":
                    pretraining.plot(folder / "pretraining.png", title=self.title)
                say(pretraining)

            # The training.
            before_training(network, folder)
            if self.training is not None:
                # which speakers are held out, if all are known: -1 stands for an unknown one
                if all(hasattr(part, "speakers") and (part.speakers >= 0).all() for part in data):
                    split = {p.split: {"utterances": len(p), "speakers": p.speakers.unique().tolist()} for p in data}
                    write_json(folder / "split.json", split)
                options = vars(self.training) | {"checkpoint": folder / TRAINING, "progress": progress}
                watcher = None
                if monitor:
                    watcher = Monitor(
                        network, self.drawn_samples(PROBE), loss=task, every=monitor, path=folder / "monitor.jsonl"
                    )
                try:
                    training = train(network, *data, seed=seed, task=task, monitor=watcher, **options)
                except FloatingPointError as error:
                    save(network, folder / NETWORK)
                    raise FloatingPointError(f"{error} They are saved in {folder / NETWORK}.") from error
                write_csv(folder / "history.csv", training.history)
                content = {name: getattr(training, name) for name in ("history", "best_epoch", "stopped_early")}
                write_json(folder / "history.json", content)
                radii = ""
                if self.pretraining and self.lsc:
                    radii = f", radii set to {self.pretraining.target}"
                chance = None
                if isinstance(task, Classification):
                    chance = 1 / network.n_out
                title = f"{self.title}, initialised by {self.initialiser}{radii}"
                training.plot(folder / "learning.png", chance=chance, title=title)
                if watcher is not None:
                    watcher.plot(folder / "monitor.png", title=title)
                    say(watcher)
            save(network, folder / NETWORK)
        return Outcome(network, pretraining, training)


def load_network(run: str | PathLike[str], *, device: str = "cpu") -> Network:
    """Return the network of a finished run, by its folder; ``ValueError`` if that holds no finished run."""
    CELLS.find(Experiment.of(run).network.cell)  # imports the module of a cell of one's own, which load needs
    return load(Path(run) / NETWORK).to(usable_device(device))


def score(run: str | PathLike[str], split: Split, *, batch_size: int = 256, device: str = "cpu") -> Scores:
    """Score a finished run on a split of its data, and write the scores into its folder, as ``<split>.json``.

    ``ValueError`` if the folder holds no finished run.
    """
    data = Experiment.of(run).data
    network = load_network(run, device=device)
    scores = evaluate(network, data.load(split), task=data.task, batch_size=batch_size)
    write_json(Path(run) / f"{split}.json", scores.to_dict())
    return scores


def diagnose_run(run: str | PathLike[str], *, samples: int = 64, cures: bool = False) -> Diagnosis:
    """Diagnose the network of a finished run on training samples drawn by its seed, with the history of its training.

    With ``cures`` the cure of every finding is tried on copies of the network. ``ValueError`` if the folder holds no
    finished run.
    """
    experiment = Experiment.of(run)
    network = load_network(run)
    data = experiment.data.load("train")
    task = experiment.data.task
    seed = experiment.network.seed
    batch = experiment.drawn_samples(samples)
    history = []
    file = Path(run) / "history.json"
    if file.exists():
        history = json.loads(file.read_text(encoding="utf-8"))["history"]
    lr = (experiment.training or TrainSettings()).lr
    labels = getattr(data, "labels", None)  # music has none
    found = diagnose(network, batch, loss=task, history=history, lr=lr, seed=seed)
    if labels is not None and not any(finding.name == MISSING for finding in found):
        # a batch may lack a class by chance; a class that all training data lack is a fault
        found = replace(found, findings=(*found, *of_labels(labels, network.n_out)))
    if not cures:
        return found
    return replace(found, trials=try_cures(network, batch, loss=task, lr=lr, diagnosis=found))
