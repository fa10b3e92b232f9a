"""What a fit shows with verbose=1, from before its first batch to its end."""

from itertools import pairwise

import pytest
from rich.errors import LiveError
from rich.live import Live

from sklearn_sharpbalance import DeepEnsembleClassifier, ResNet18
from sklearn_sharpbalance import DiversifiedEnsembleClassifier as Diversified
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.training import display, progress
from sklearn_sharpbalance.training.display import FitDisplay, Lines, NotebookBar
from sklearn_sharpbalance.training.loop import TrainingLoop
from sklearn_sharpbalance.training.trainer import PhasedTrainer
from tests.cases import SMALL, pictures, table


class Stopped(Exception):
    """Raised in place of the next step of a fit."""


def stop(*args, **kwargs):
    raise Stopped


FEW = {"n_estimators": 2, "max_epochs": 3, "random_state": 0, "device": "cpu"}


@pytest.mark.parametrize(
    ("clf", "data", "line"),
    [
        (
            SharpBalance(rho=0.2, **FEW),
            pictures(),
            "SharpBalance(n_estimators=2, rho=0.2, max_epochs=3): SmallResNet of width "
            "16, 2 members, 3 epochs, 40 images, device cpu, engine skorch",
        ),
        (
            DeepEnsembleClassifier(ResNet18, **{**FEW, "n_estimators": 1}),
            pictures(),
            "ResNet18 of width 64, 1 member, 3 epochs, 40 images, device cpu",
        ),
        (
            Diversified(**FEW),
            table(),
            "MLP, 2 members, 3 epochs, 60 samples, device cpu, engine stacked",
        ),
    ],
)
def test_the_first_line_comes_before_any_member(clf, data, line, capsys, monkeypatch):
    monkeypatch.setattr(TrainingLoop, "start", stop)
    with pytest.raises(Stopped):
        clf.set_params(verbose=1).fit(*data)
    (printed,) = capsys.readouterr().out.splitlines()
    assert line in printed


# A fit of two members, 20 batches per epoch, a second per batch ----------------------


class Screen:
    """Keeps what is shown, with the time."""

    def __init__(self, clock, seconds, *, keeps_text):
        self.clock, self.seconds, self.keeps_text = clock, seconds, keeps_text
        self.shown = []

    def show(self, fraction, text):
        self.shown.append((self.clock.now, round(fraction, 3), text))


class Clock:
    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(display, "time", clock)
    return clock


def train(shown, clock, seconds=(1, 1, 2, 2)):
    """Train one member after the other; every epoch has its seconds per batch."""
    shown.begin()
    for member in (0, 1):
        for epoch, per_batch in enumerate(seconds):
            for batch in range(20):
                clock.now += per_batch
                shown.reached([member], epoch + (batch + 1) / 20)
            shown.losses[member] = 0.5
    shown.end("2 members")


def test_lines_come_after_3_seconds_and_every_15_seconds(clock):
    screen = Screen(clock, Lines.seconds, keeps_text=True)
    train(FitDisplay(screen, stops=[2, 4], passes=[1, 2], n_members=2), clock)
    (first, _, text), *_, last = screen.shown
    assert (first, text) == (3, "0.1 of 8 epochs, about 4 min left")
    times = [time for time, _, _ in screen.shown[:-1]]
    assert all(15 <= after - before <= 16 for before, after in pairwise(times))
    # An epoch of the second segment is known to take twice the time.
    lefts = [text for _, _, text in screen.shown if text.endswith(" left")]
    assert lefts[1].endswith("about 3 min 40 s left")
    assert last == (240, 1.0, "2 members, loss 0.5000, 240.0 s")


def test_a_bar_moves_within_an_epoch(clock):
    screen = Screen(clock, 0.2, keeps_text=False)
    train(FitDisplay(screen, stops=[2, 4], passes=[1, 2], n_members=2), clock)
    (_, start, empty), *moving, end = screen.shown
    assert (start, empty) == (0.0, "0 of 8 epochs")
    fractions = [fraction for _, fraction, _ in moving]
    assert len(set(fractions)) > 100
    assert fractions == sorted(fractions)
    assert "left" not in moving[0][2]
    assert moving[20][2].endswith(", about 3 min 40 s left")
    assert end[1] == 1.0


def test_a_bar_shows_the_selection(clock):
    screen = Screen(clock, 0.2, keeps_text=False)
    FitDisplay(screen, stops=[2, 4], passes=[1, 1], n_members=2).selecting()
    assert screen.shown == [(0, 0.0, "0 of 8 epochs, selecting samples")]


def test_an_engine_that_reports_epochs_is_timed_by_them(clock):
    screen = Screen(clock, Lines.seconds, keeps_text=True)
    shown = FitDisplay(screen, stops=[2, 4], passes=[1, 1], n_members=2)
    for epoch in range(4):
        clock.now += 100 if epoch == 0 else 10  # the first one includes the set-up
        shown.reached([0, 1], epoch + 1)
    assert [text for _, _, text in screen.shown] == [
        "2 of 8 epochs",
        "6 of 8 epochs, about 10 s left",
    ]


def test_a_short_fit_prints_one_line(clock):
    screen = Screen(clock, Lines.seconds, keeps_text=True)
    shown = FitDisplay(screen, stops=[2, 4], passes=[1, 1], n_members=2)
    train(shown, clock, seconds=[0.01] * 4)
    assert len(screen.shown) == 1


@pytest.mark.parametrize("fast", ["stacked", "skorch"])
def test_a_fit_prints_lines_within_epochs(fast, capsys, monkeypatch):
    monkeypatch.setattr(Lines, "seconds", 0)
    SharpBalance(verbose=1, selection="all", engine=fast, **SMALL).fit(*table())
    lines = [line.split("): ")[1] for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("MLP, 2 members, 4 epochs, 60 samples")
    assert any(line.startswith("0.3 of 8 epochs") for line in lines) == (
        fast == "skorch"
    )
    assert any(line.startswith("4.7 of 8 epochs, SAM, loss") for line in lines)
    assert "2 members, 4 epochs, loss" in lines[-1]


def test_joint_training_shows_batches(capsys, monkeypatch):
    monkeypatch.setattr(Lines, "seconds", 0)
    Diversified(verbose=1, **SMALL).fit(*table())
    assert "0.7 of 8 epochs" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:The fit was interrupted")
def test_bar_of_a_resumed_fit_starts_at_its_epoch(monkeypatch, tmp_path, terminal):
    shown = []

    def show(self, fraction, text):
        shown.append(text)

    monkeypatch.setattr(display.TerminalBar, "show", show)
    clf = SharpBalance(
        checkpoint_dir=tmp_path, warmup_epochs=3, verbose=1, engine="stacked", **SMALL
    )
    with monkeypatch.context() as patch:
        patch.setattr(PhasedTrainer, "select", stop)
        with pytest.raises(Stopped):
            clf.fit(*table())
    assert shown[0] == "0 of 8 epochs"
    shown.clear()
    clf.fit(*table())
    assert shown[0] == "6 of 8 epochs"


def test_lines_beside_another_active_display(monkeypatch, capsys, terminal):
    """Before 14.1 rich raises for a second display of the user or another thread."""

    def refuse(*args, **kwargs):
        raise LiveError("Only one live display may be active at once")

    monkeypatch.setattr(Live, "start", refuse)
    SharpBalance(verbose=1, **SMALL).fit(*table())
    assert "2 members, 4 epochs, loss" in capsys.readouterr().out.splitlines()[-1]


def test_bar_of_a_notebook_is_drawn_again_in_its_place(monkeypatch):
    drawn = []

    class Handle:
        def update(self, bar):
            drawn.append(bar._repr_html_())

    def show(bar, display_id):
        drawn.append(bar._repr_html_())
        return Handle()

    monkeypatch.setattr("IPython.display.display", show)
    bar = NotebookBar("Own(rho=<b>)")
    bar.show(0.25, "1 of 4 epochs")
    bar.show(1.0, "1 member, 4 epochs")
    assert 'value="0.2500"' in drawn[0]
    assert "Own(rho=&lt;b&gt;)" in drawn[0]
    assert "1 member, 4 epochs" in drawn[1]
    assert repr(bar) == "Own(rho=<b>): 1 member, 4 epochs"


@pytest.mark.parametrize("verbose", [0, 1])
def test_silence(verbose, capsys, monkeypatch):
    """Without verbose, and in worker processes."""
    if verbose:
        monkeypatch.setattr(progress, "parent_process", lambda: "that of a search")
    SharpBalance(verbose=verbose, **SMALL).fit(*table())
    assert capsys.readouterr() == ("", "")
