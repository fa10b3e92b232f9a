"""Learning-rate schedules against torch's own schedulers and closed forms."""

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

from sklearn_sharpbalance.data.batches import BatchSizes
from sklearn_sharpbalance.members.schedules import cosine, one_cycle, paper_steps
from tests.members.cases import segment

N_STEPS = 2000


def by_torch(kind, **options):
    """Return the rates of a torch scheduler over N_STEPS steps, from rate one."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = kind(optimizer, **options)
    rates = []
    for _ in range(N_STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return np.array(rates)


def ours(schedule):
    return np.array([schedule(step / N_STEPS) for step in range(N_STEPS)])


def test_steps_are_torchs_multi_step():
    milestones = [N_STEPS // 2, N_STEPS * 3 // 4]
    want = by_torch(lr_scheduler.MultiStepLR, milestones=milestones, gamma=0.1)
    np.testing.assert_allclose(ours(paper_steps), want)


def test_cosine_is_torchs_cosine_annealing():
    want = by_torch(lr_scheduler.CosineAnnealingLR, T_max=N_STEPS)
    np.testing.assert_allclose(ours(cosine), want, atol=1e-9)


def test_one_cycle_is_torchs_one_cycle():
    want = by_torch(
        lr_scheduler.OneCycleLR,
        max_lr=1.0,
        total_steps=N_STEPS,
        cycle_momentum=False,
        div_factor=25,
        final_div_factor=400,  # relative to the initial rate 1/25: ends at 1e-4
    )
    # torch's phases are shifted by one of 2000 steps.
    np.testing.assert_allclose(ours(one_cycle), want, atol=5e-3)
    assert one_cycle(0.0) == pytest.approx(1 / 25)
    assert one_cycle(1.0) == pytest.approx(1e-4)


def test_progress_of_a_segment_is_relative_to_the_whole_training():
    sizes = BatchSizes(0, 4, sam_width=8, normal_width=8)
    phase = segment(
        10, start=5, sizes=sizes, rho=(0.0,), lr_schedule=lambda progress: progress
    )
    assert phase.lr_factor(5, 0) == pytest.approx(0.5)
    assert phase.lr_factor(7, 2) == pytest.approx(0.75)
    assert phase.last
    warm_up = segment(5, name="warmup", n_epochs=10, sizes=sizes, rho=(0.0,))
    assert not warm_up.last
