"""The course of a fit from segment to segment, whatever trains its members.

Callbacks, early stopping, checkpoints and Ctrl-C are met here and nowhere else.
"""

from itertools import zip_longest

from sklearn_sharpbalance.training.checkpoint import FitCheckpoints
from sklearn_sharpbalance.training.loop import EnsembleState

__all__ = ["follow_course", "start_course"]


def start_course(
    net, data, make_members, checkpoints: FitCheckpoints | None = None, stopping=None
) -> tuple[EnsembleState, bool]:
    """State to train on from, and whether that is the end already.

    Parameters
    ----------
    net : NeuralNetClassifier
    data : TrainingData
    make_members : callable
        Makes the members of a fit that has not begun.
    checkpoints : FitCheckpoints or None, default=None
    stopping : EarlyStopping or None, default=None
        Told what it had seen before.
    """
    saved = None if checkpoints is None else checkpoints.load(net, data)
    if saved is None:
        state = EnsembleState(make_members())
        if checkpoints is not None:  # a bad disk comes out before the work
            checkpoints.write(state, stopping)
        return state, False
    if stopping is not None:
        stopping.scores, stopping.best = saved.scores, saved.best
        stopping.best_score = saved.best_score
    return saved.state, saved.finished


def follow_course(
    trainer,
    state: EnsembleState,
    segments,
    monitor,
    keep,
    fitted,
    *,
    offer=None,
    checkpoints: FitCheckpoints | None = None,
    stopping=None,
) -> None:
    """Train through all segments, or until somebody asks to stop; keep the result.

    Parameters
    ----------
    trainer : Trainer or JointTrainer
        Whose ``run`` takes a state through a segment.
    state : EnsembleState
    segments : list of Segment
    monitor : FitMonitor
    keep : callable
        Takes the state that is the result. An interrupted fit keeps the last one.
    fitted : FittedState
        Told what an interrupted fit leaves behind.
    offer : callable, default=None
        Called with the state after each segment, while callbacks may still look.
    checkpoints : FitCheckpoints or None, default=None
    stopping : EarlyStopping or None, default=None
    """
    try:
        with monitor.fit():
            for segment, following in zip_longest(segments, segments[1:]):
                with monitor.segment(segment) as on_epoch:
                    state = trainer.run(state, segment, on_epoch)
                    if offer is not None:
                        offer(state)
                finished = following is None or monitor.stop
                finished |= all(member.stopped for member in state.members)
                if stopping is not None and stopping.update(trainer, state):
                    finished = True
                if checkpoints is not None and (
                    finished or checkpoints.due(segment, following)
                ):
                    checkpoints.write(state, stopping, finished=finished)
                if finished:
                    break
    except KeyboardInterrupt:
        if state.epoch > 0:
            keep(state)
            kept = (stopping and stopping.best) or state
            fitted.usable_epochs = kept.epoch
        raise
    keep(state)
