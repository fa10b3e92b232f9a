"""Where progress is shown: a bar in a terminal or a notebook, else lines of text."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

import numpy as np

SHORTEST_FIT = 3.0  # seconds; a shorter one prints a line at its end only


class Lines:
    """A line of text now and then, for a file or a log."""

    seconds = 15.0  # between two lines
    keeps_text = True

    def __init__(self, name):
        self.name = name

    def show(self, fraction, text):
        """Print the state."""
        print(f"{self.name}: {text}", flush=True)


class TerminalBar:
    """A bar of rich in a terminal."""

    seconds = 0.2
    keeps_text = False

    def __init__(self, bar, task):
        self.bar, self.task = bar, task

    def show(self, fraction, text):
        """Move the bar, and replace the text."""
        self.bar.update(self.task, completed=fraction, text=text)


class NotebookBar:
    """A bar of HTML in a notebook, which needs no ipywidgets and is saved with it."""

    seconds = 0.5
    keeps_text = False

    def __init__(self, name, fraction=0.0, text=""):
        self.name, self.fraction, self.text = name, fraction, text
        self._handle = None

    def show(self, fraction, text):
        """Draw the bar, or draw it again."""
        from IPython.display import display

        self.fraction, self.text = fraction, text
        if self._handle is None:
            self._handle = display(self, display_id=True)
        else:
            self._handle.update(self)

    def __repr__(self):
        return f"{self.name}: {self.text}"

    def _repr_html_(self):
        bar = f'<progress max="1" value="{self.fraction:.4f}"></progress>'
        style = "font-family:monospace;white-space:pre-wrap"
        return (
            f'<div style="{style}">{escape(self.name)} {bar} {escape(self.text)}</div>'
        )


@contextmanager
def open_display(name: str) -> Iterator:
    """Open the display that the standard output can show."""
    from rich.console import Console
    from rich.errors import LiveError

    console = Console()
    if console.is_jupyter:
        yield NotebookBar(name)
        return
    if not console.is_terminal or console.is_dumb_terminal:
        yield Lines(name)
        return
    bar = _terminal_bar()
    try:
        bar.start()
    except LiveError:  # before rich 14.1 only one display can be shown
        yield Lines(name)
        return
    try:
        yield TerminalBar(bar, bar.add_task(name, total=1.0, text=""))
    finally:
        bar.stop()


def _terminal_bar():
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    # The name takes the rest of the line, and is cut at its end.
    rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    return Progress(
        TextColumn("{task.description}", markup=False, table_column=rest),
        BarColumn(bar_width=12),
        TextColumn("{task.fields[text]}", markup=False),
        expand=True,
        refresh_per_second=4,
    )


class FitDisplay:
    """Shows how many epochs the members of a fit have trained, and the time left.

    The time is estimated from that since the first report. ``stops`` are the ends of
    the segments. ``passes`` are those of an epoch in each segment, so that epochs with
    SAM count more. ``start`` is not zero if the fit resumes.
    """

    def __init__(self, screen, *, stops, passes, n_members=1, start=0):
        self.screen, self.n_members = screen, n_members
        self.edges = [0, *stops]
        self.work = np.append(0, np.cumsum(np.diff(self.edges) * passes))
        self.epochs = [float(start)] * n_members
        self.phase = ""
        self.losses: dict[int, float] = {}  # latest of each member
        self._began = time.monotonic()
        self._due = self._began + min(screen.seconds, SHORTEST_FIT)
        # Time and fraction at the first report: what is before it is no training.
        self._first: tuple[float, float] | None = None

    def begin(self):
        """Draw the empty bar."""
        if not self.screen.keeps_text:
            self._show(time.monotonic())

    def reached(self, members, epochs):
        """Take the epochs that some members have trained."""
        now = time.monotonic()
        for member in members:
            self.epochs[member] = epochs
        if self._first is None:
            self._first = now, self._fraction()
        if now >= self._due:
            self._show(now)

    def selecting(self):
        """Show that samples are selected."""
        now = time.monotonic()
        if now >= self._due or not self.screen.keeps_text:
            self._show(now, "selecting samples")

    def end(self, text):
        """Show what has been trained, and the seconds."""
        seconds = f"{time.monotonic() - self._began:.1f} s"
        self.screen.show(1.0, ", ".join([text, *self._loss(), seconds]))

    def _show(self, now, doing=""):
        """Show epochs, what the fit does, loss and the time left."""
        self._due = now + self.screen.seconds
        done = f"{sum(self.epochs):.1f}".removesuffix(".0")
        parts = [f"{done} of {self.n_members * self.edges[-1]} epochs"]
        if doing:
            parts.append(doing)
        else:  # both would not fit into a line of a terminal
            parts += [self.phase] if self.phase else []
            parts += self._loss()
        self.screen.show(self._fraction(), ", ".join(parts + self._left(now)))

    def _loss(self):
        """Return the mean loss of the members as a list, empty before an epoch."""
        losses = list(self.losses.values())
        return [f"loss {np.mean(losses):.4f}"] if losses else []

    def _fraction(self):
        """Return the fraction of the work that is done."""
        done = np.interp(self.epochs, self.edges, self.work).sum()
        return float(done / (self.n_members * self.work[-1]))

    def _left(self, now):
        """Return the time left as a list, empty before a second of training."""
        began, before = self._first or (now, 0.0)
        done = self._fraction()
        if now - began < 1.0 or done == before:
            return []
        return [f"about {duration((now - began) * (1 - done) / (done - before))} left"]


class Steps:
    """Prints a line before each of several steps, with the time left for them."""

    def __init__(self, n_steps, *, show):
        self.n_steps, self.show = n_steps, show
        self._n_done = 0
        self._began = time.monotonic()

    def begin(self, text):
        """Print the number and the text of the next step."""
        line = f"{self._n_done + 1} of {self.n_steps}: {text}"
        if self._n_done:
            seconds = (time.monotonic() - self._began) / self._n_done
            left = seconds * (self.n_steps - self._n_done)
            line += f", about {duration(left)} left"
        self._n_done += 1
        if self.show:
            print(line, flush=True)


def duration(seconds: float) -> str:
    """Return a rounded duration.

    Examples
    --------
    >>> [duration(seconds) for seconds in (8.2, 250, 1300, 8000)]
    ['8 s', '4 min 10 s', '22 min', '2 h 13 min']
    """
    minutes = seconds / 60
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    if minutes < 10:
        whole, tens = divmod(round(seconds / 10), 6)
        return f"{whole} min {tens}0 s" if tens else f"{whole} min"
    if minutes < 59.5:
        return f"{minutes:.0f} min"
    return f"{round(minutes) // 60} h {round(minutes) % 60} min"
