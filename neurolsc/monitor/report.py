"""The monitor itself: it counts updates, takes rows, keeps them in a file, and tells what happened."""

import json
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict
from os import PathLike
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from neurolsc.diagnosis.losses import Loss, check, objective, output_of
from neurolsc.diagnosis.measurements import Batch
from neurolsc.display import Displayed, Table, in_80_columns, or_dash
from neurolsc.interop.prepared import Output, prepare
from neurolsc.interop.wrap import as_modules
from neurolsc.interop.wrapped import warn_of
from neurolsc.io import write_text
from neurolsc.monitor.measurements import Probe, Row, Weights, copy_of, not_finite, weights_of
from neurolsc.monitor.rules import Course, Event, events
from neurolsc.surroundings import eval_mode, full_precision, original, rank_of_processes
from neurolsc.validation import shown, whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = {
    "spikes": ("rate", ".3f"),
    "dead": ("dead", ".0%"),
    "busy": ("saturated", ".0%"),
    "sync": ("synchrony", ".2f"),
    "active": ("active", ".0%"),
    "input": ("similarity", ".0%"),
    "time": ("radius_time", ".2f"),
    "depth": ("radius_depth", ".2f"),
    "gradient": ("gradient", ".1e"),
    "step": ("step", ".1e"),
}
"""Columns of the table: for each title the name in a row, without the number of the layer, and the form."""


def one_number(loss: object) -> Tensor:
    """Return a loss as a detached tensor of one number; its value is not read, so that nothing waits for a GPU."""
    try:
        value = torch.as_tensor(loss).detach()
    except (TypeError, ValueError, RuntimeError):  # of a string or another object
        raise TypeError(f"loss must be one number, got {shown(loss)}.") from None
    if value.is_complex() or value.dtype == torch.bool:
        raise TypeError(f"loss must be one number, got {value.dtype}.")
    if value.numel() != 1:
        raise ValueError(f"loss must be one number, got a tensor {tuple(value.shape)}.")
    return value


def is_json(text: str) -> bool:
    """Return whether a text is a whole value of JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def row_of(line: dict[str, Any]) -> Row:
    """Return the row that a line of a file holds; raise a TypeError, ValueError or KeyError if it holds none."""
    whole("update", line["update"], at_least=0)
    for name, value in line.items():
        if not isinstance(value, int | float):
            raise TypeError(f"{name} must be a number, got {shown(value)}.")
    return line


class Monitor(Displayed):
    """Watch a network while it is trained, in any loop: a row of measurements every so many updates.

    What happens to a layer is printed once, when it happens: that it falls silent or saturates, that its gradient
    explodes or vanishes, that its weights stand still or move too far, that the loss is not finite, rises, or stands
    still at guessing. The sentence says what changed before. The network, its gradients, modes and states, and the
    random numbers stay as they were. Of several processes that of rank 0 measures, and speaks.

    Args:
        net: a :class:`neurolsc.Network`, or a module of snnTorch, norse, spikingjelly or PyTorch, as it is trained.
        x: the probe batch, as net takes it: a few dozen samples, on which every row is measured.
        y: targets of the probe batch; without them no probe loss and no gradients are measured.
        loss: what is trained, as in :func:`neurolsc.diagnose`.
        every: updates from row to row. A row takes as long as two to ten updates.
        path: a file of JSON lines, to which rows and events are appended. If it has rows, they are read, and updates
            are counted on from the last one.
        callback: called with every new row, a flat dict of numbers, such as ``run.log`` of W&B.

    Attributes:
        rows: the rows, each a dict: ``update``, ``loss`` (the mean of what :meth:`step` got since the last row),
            ``probe_loss``, and of each layer (counted from 1) ``rate_1``, ``dead_1``, ``saturated_1``, ``synchrony_1``,
            ``active_1``, ``similarity_1``, ``radius_time_1``, ``radius_depth_1``, ``gradient_1``,
            ``signal_to_noise_1``, ``threshold_1``, ``voltage_1`` (in thresholds), ``surrogate_width_1``, ``decay_...``,
            ``weights_1`` and ``recurrent_1`` (norms), ``change_1`` (norm of the last update over that of the weights),
            ``drift_1`` (likewise, since the last row), ``step_1`` (thresholds by which the last update moves voltages,
            if it is of one sign), and with a scaler ``scale`` and ``skipped`` (updates since the last row). What is
            not known or not finite is left out.
        findings: what happened.
        updates: how many updates were counted.

    Raises:
        TypeError: if net cannot be wrapped, x or y is of another kind, loss is no loss, or callback no function.
        ValueError: if x or y does not fit net or loss, every is not positive, or path holds something else.

    Example:
        >>> from neurolsc import LIF, Network
        >>> net = Network([LIF(6, 8), LIF(8, 8)], n_out=3)
        >>> monitor = Monitor(net, torch.rand(12, 4, 6), torch.tensor([0, 1, 2, 0]), every=50)
        >>> for update in range(100):
        ...     monitor.step(1.0)  # after optimizer.step()
        >>> len(monitor.rows), monitor.updates
        (3, 100)
    """

    def __init__(
        self,
        net: nn.Module | Iterable[nn.Module],
        x: Any,
        y: Tensor | None = None,
        *,
        loss: Loss = "step",
        every: int = 100,
        path: str | PathLike[str] | None = None,
        callback: Callable[[Row], object] | None = None,
    ) -> None:
        net = original(net)
        self._net = net if isinstance(net, nn.Module) else nn.ModuleList(as_modules(net))
        self._wrapped = net  # as it was given: a list of modules is wrapped in its order
        self._given = x, y
        self._loss = objective(loss)
        self._prefers: Output | None = output_of(loss)
        self.every = whole("every", every)
        if callback is not None and not callable(callback):
            raise TypeError(f"callback must be a function of a row, got {shown(callback)}.")
        self.path = path
        self.callback = callback
        self.rows: list[Row] = []
        self.findings: list[Event] = []
        self.updates = 0
        self.closed = False
        self._silent = rank_of_processes()[0] > 0
        self._losses: list[tuple[int, Tensor]] = []  # since the last row, with the number of the update
        self._scale = math.inf  # of a GradScaler; infinite without one
        self._skipped = 0  # updates since the last row that it left out
        self._before: Weights | None = None  # weights before the last update, if a row follows it
        self._earlier: Weights | None = None  # weights at the last row
        self._warned: set[str] = set()  # things of which a warning was given
        self._parameters: list[nn.Parameter] = []
        self._prepare()
        batch = self._probe.batch
        if batch.targets is not None:  # a loss that does not fit is refused now, not at the first row
            with full_precision(self._net), eval_mode(self._probe.network), torch.no_grad():
                out = self._probe.network.run(batch.x, mask=batch.mask).logits
                check(loss, out, batch.targets, batch.mask)
        if self._silent:
            return
        if path is not None and os.path.exists(path):
            self._read(path)
        if not self.rows:
            self._take_row()
        self._earlier = copy_of(weights_of(self._probe.network))

    def _prepare(self) -> None:
        """Make a network over the parameters that the module has now, and lay the probe batch out for it."""
        with full_precision(self._net):
            prepared = prepare(self._wrapped, *self._given, prefers=self._prefers)
        self._probe = Probe(prepared.network, Batch.of(prepared), self._loss)
        zeros = torch.zeros(*prepared.x.shape[:2], prepared.network.n_out, **prepared.network.dtype_and_device)
        self._classes = self._loss.guesses_among(zeros, prepared.targets, prepared.mask) or 0
        self._parameters = list(self._net.parameters())

    def step(self, loss: Tensor | float | None = None, *, scaler: torch.amp.GradScaler | None = None) -> None:
        """Count an update; every so many, measure.

        Args:
            loss: the training loss of the update, one number, without the scale of a scaler; it may be NaN.
            scaler: the scaler of a training in float16, after its ``update()``. The loss of an update that it skipped,
                since gradients were infinite, is left out; if it skips all, that is a finding. Gradients in rows are
                not scaled.

        Raises:
            TypeError: if the loss is no number, or the scaler no scaler.
            ValueError: if it is a tensor of several numbers.
        """
        if self.closed:
            self._warn("closed", f"the monitor was closed at update {self.updates}: later updates are not measured.")
            return
        value = None
        if loss is not None:
            value = one_number(loss)
        if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
            raise TypeError(f"scaler must be a torch.amp.GradScaler, got {shown(scaler)}.")
        self.updates += 1
        if self._silent:
            return
        if value is not None:
            self._losses.append((self.updates, value.reshape(()).clone()))
        if scaler is not None and self._is_skipped(scaler):
            self._skipped += 1
            self._before = None
            if value is not None:
                self._losses.pop()
        until_row = -self.updates % self.every  # how many updates there are until the next row
        if until_row == 0:
            self._take_row()
        # A row that follows the next update says what that update did to the weights.
        if until_row == 1 or self.every == 1:
            self._before = copy_of(weights_of(self._probe.network))

    def _is_skipped(self, scaler: torch.amp.GradScaler) -> bool:
        """True if the scaler skipped the last update: then its scale fell, and its count of good updates is 0."""
        before = self._scale
        self._scale = scaler.get_scale()
        return self._scale < before and scaler.state_dict().get("_growth_tracker") == 0

    def go_on_from(self, updates: int) -> None:
        """Count on from an update, as a training goes on from its checkpoint; rows and findings after it are dropped.

        Args:
            updates: how many updates the network has, as it is now.
        """
        whole("updates", updates, at_least=0)
        self.rows = [row for row in self.rows if row["update"] <= updates]
        self.findings = [event for event in self.findings if event.update <= updates]
        self.updates = updates
        self._losses.clear()
        self._before = self._earlier = None
        self._scale = math.inf  # as before the first update with a scaler
        self._skipped = 0
        # Drift is measured from the last row: the weights of that row are known only if it is of this very update.
        if self.rows and self.rows[-1]["update"] == updates:
            self._earlier = copy_of(weights_of(self._probe.network))
        if self._silent:
            return
        lines: list[dict[str, Any]] = []
        for row in self.rows:
            lines.append(row)
            lines += [{"event": asdict(event)} for event in self.findings if event.update == row["update"]]
        self._write(lines, anew=True)

    def close(self) -> None:
        """Measure no more. Rows in a file are written already."""
        self.closed = True

    # ---- rows

    def _take_row(self) -> None:
        """Measure, tell what happened, and write the row; no failure of these stops the training."""
        row: Row = {"update": self.updates}
        late_loss = math.nan
        if self._scale < math.inf:
            row |= {"scale": self._scale, "skipped": self._skipped}
            self._skipped = 0
        by_update = [(update, value.item()) for update, value in self._losses]
        losses = [loss for _, loss in by_update]
        self._losses.clear()
        first_bad = next((pair for pair in by_update if not math.isfinite(pair[1])), None)
        if losses and first_bad is None:
            row["loss"] = mean(losses)
            late_loss = mean(losses[-max(len(losses) // 4, 1) :])  # of the last quarter
        self._look_for_changes()
        if self.closed:
            return
        probe = self._probe
        probe_is_finite = bool(probe.batch.x.isfinite().all())
        if probe_is_finite and not not_finite(probe.network):
            try:
                row |= self._measured()
            except (FloatingPointError, RuntimeError, ValueError, TypeError, IndexError) as error:
                self._warn("measure", f"the network cannot be measured at update {self.updates}: {error}")
        seen = {(event.name, event.layer) for event in self.findings}
        course = Course(
            rows=[*self.rows, row],
            network=probe.network,
            classes=self._classes,
            first_bad_loss=first_bad,
            late_loss=late_loss,
            probe_is_finite=probe_is_finite,
            seen=seen,
        )
        found = events(course)
        # rules have read numbers that are not finite; a row and its file leave these out
        row = {name: value for name, value in row.items() if math.isfinite(value)}
        self.rows.append(row)
        self.findings += found
        for event in found:
            tqdm.write(in_80_columns(event))
        self._write([row, *({"event": asdict(event)} for event in found)])
        if self.callback is not None:
            try:
                self.callback(dict(row))
            except Exception as error:  # a writer of others may raise anything
                self._warn(
                    "callback", f"the callback failed at update {self.updates}, and is not called again: {error!r}"
                )
                self.callback = None
        self._earlier = copy_of(weights_of(probe.network))

    def _measured(self) -> Row:
        """Measure a row of the network; torch's random numbers go on as if it had not been measured."""
        device = self._probe.network.dtype_and_device["device"]
        cuda = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda), full_precision(self._net):
            return self._probe.measure(self._before, self._earlier)

    def _look_for_changes(self) -> None:
        """Make the network and the probe anew if parameters of the module were replaced.

        The monitor is closed if that fails, or if the number of layers has changed.
        """
        parameters = list(self._net.parameters())
        same = len(parameters) == len(self._parameters)
        if same and all(a is b for a, b in zip(parameters, self._parameters, strict=True)):
            return
        layers = len(self._probe.network.cells)
        try:
            self._prepare()
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            self.closed = True
            self._warn("changed", f"the module was changed before update {self.updates}, the monitor ends: {error}")
            return
        self._before = self._earlier = None  # they are of the old parameters
        result = ", the new ones are measured"
        if len(self._probe.network.cells) != layers:  # rows would no longer be of the same layers
            self.closed = True
            result = f": the network no longer has {layers} layers, the monitor ends"
        self._warn("changed", f"parameters of the module were replaced before update {self.updates}{result}.")

    def _warn(self, what: str, text: str) -> None:
        """Warn with a text, unless a warning of the same kind, `what`, was given before."""
        if what not in self._warned:
            self._warned.add(what)
            warn_of(text, UserWarning)

    # ---- the file

    def _write(self, lines: list[dict[str, Any]], *, anew: bool = False) -> None:
        """Append rows and events to the file, a line of JSON each; if that fails, rows are kept in memory alone.

        With ``anew=True`` they take the place of what the file holds.
        """
        if self.path is None:
            return
        text = "".join(json.dumps(line) + "\n" for line in lines)
        try:
            if anew:
                write_text(self.path, text)
            else:
                with open(self.path, "a", encoding="utf-8") as file:
                    file.write(text)
        except OSError as error:
            self._warn("file", f"rows are no longer written to {os.fspath(self.path)}: {error}")
            self.path = None

    def _read(self, path: str | PathLike[str]) -> None:
        """Read the rows and findings of a file, to go on with them; a last line that a kill has cut is taken off.

        A file that is refused stays as it is.

        Raises:
            ValueError: if it holds something else, or rows of a network with another number of layers.
        """
        with open(path, "rb") as file:
            content = file.read()
        try:
            *lines, last = content.decode().split("\n")
            start = "{" if lines else '{"update": '  # of a line that a monitor has written; the first one is a row
            is_cut = last.startswith(start) and not is_json(last)
            if last and not is_cut:
                lines.append(last)  # a whole line, of which only the end is missing
            for line in map(json.loads, lines):
                if "event" in line:
                    self.findings.append(Event(**line["event"]))
                else:
                    self.rows.append(row_of(line))
                    self.updates = line["update"]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{os.fspath(path)} holds no rows of a monitor: {error!r}") from error
        layers = len(self._probe.network.cells)
        # the number of layers in the rows: each has a similarity
        measured = len({name for row in self.rows for name in row if name.startswith("similarity_")})
        if measured and measured != layers:
            raise ValueError(f"{os.fspath(path)} holds rows of {measured} layers, net has {layers}: give another path.")
        if last:
            write_text(path, "".join(f"{line}\n" for line in lines))

    # ---- shown

    def parts(self) -> list[str | Table]:
        """Return what is shown: a table with a line for each layer, of the last row, and what happened."""
        if self._silent:
            return ["the monitor of rank 0 has the rows"]
        if not self.rows:  # go_on_from may have dropped them all
            return ["no rows yet"]
        last = self.rows[-1]
        lines = []
        for layer in range(1, len(self._probe.network.cells) + 1):
            cells = [or_dash(last.get(f"{name}_{layer}"), form) for name, form in COLUMNS.values()]
            lines.append((str(layer), *cells))
        shown: list[str | Table] = [Table(("layer", *COLUMNS), lines)]
        loss = f"loss {or_dash(last.get('loss'), '.4g')}, of the probe batch {or_dash(last.get('probe_loss'), '.4g')}"
        shown.append(f"update {last['update']}: {loss}")
        for event in self.findings:
            shown.append(in_80_columns(event))
        return shown if self.findings else [*shown, "nothing happened"]

    def plot(self, path: str | PathLike[str] | None = None, *, title: str = "") -> "Figure":
        """Draw the rows over the updates, a panel for each question, with a line at each finding.

        Args:
            path: a file to which it is saved, in the format of the suffix; None: it is only returned.
            title: title of the picture.
        """
        from neurolsc.plots import plot_monitor  # matplotlib is slow to import and few runs draw

        layers = range(1, len(self._probe.network.cells) + 1)

        def of_layers(name: str) -> list[list[float]]:  # for each layer a number of every row
            return [[row.get(f"{name}_{layer}", math.nan) for row in self.rows] for layer in layers]

        def of_first(name: str) -> list[list[float]]:  # the same, divided by the first number that is not 0
            relative = []
            for values in of_layers(name):
                first = next((value for value in values if abs(value) > 0), math.nan)  # NaN is not above 0
                relative.append([value / first for value in values])
            return relative

        return plot_monitor(
            path,
            updates=[row["update"] for row in self.rows],
            loss={name: [row.get(name, math.nan) for row in self.rows] for name in ("loss", "probe_loss")},
            rate=of_layers("rate"),
            dead=of_layers("dead"),
            saturated=of_layers("saturated"),
            similarity=of_layers("similarity"),
            active=of_layers("active"),
            gradient=of_layers("gradient"),
            radius_time=of_layers("radius_time"),
            radius_depth=of_layers("radius_depth"),
            step=of_layers("step"),
            threshold=of_first("threshold"),
            weights=of_first("weights"),
            recurrent=of_first("recurrent"),
            findings=[(event.update, event.layer, str(event)) for event in self.findings],
            title=title,
        )
