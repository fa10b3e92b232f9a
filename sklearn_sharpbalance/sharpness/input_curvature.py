"""Sharpness as the curvature of the loss in the input."""

import torch

from sklearn_sharpbalance._validation import (
    POSITIVE,
    POSITIVE_INTEGER,
    check_numbers,
    check_random_state,
)
from sklearn_sharpbalance.autodiff import (
    Rows,
    evaluation_mode,
    in_chunks,
    map_tensors,
    sample_losses,
)
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.sharpness.base import NetScorer


def input_curvature(
    net, X, y, *, step=1e-3, n_directions=10, chunk_size=512, random_state=0
):
    r"""Return the curvature of each sample's loss in the input.

    Parameters
    ----------
    net : NeuralNetClassifier
        Initialised skorch net.
    X : array, tensor, dict of those, or Dataset
        Floating-point inputs, or uint8 images. Other entries of a dict, such as
        indices, stay fixed.
    y : array or tensor of shape (N,)
    step : float, default=1e-3
        Length :math:`h` of the finite difference.
    n_directions : int, default=10
        Number of random directions :math:`v_d` of signs, the same for all samples.
    chunk_size : int, default=512
        Samples at a time; halved when memory runs out.
    random_state : int, RandomState instance or None, default=0
        Seed of the directions.

    Returns
    -------
    tensor of shape (N,)

    Notes
    -----
    .. math:: \frac{1}{D} \sum_{d=1}^{D}
              \Big\| \frac{\nabla_x \ell(x_n + h v_d) - \nabla_x \ell(x_n)}{h}
              \Big\|_2^2 \approx \frac{1}{D} \sum_d \| H_n v_d \|_2^2 ,

    whose mean over random signs is :math:`\operatorname{tr} H_n^2`. All samples share
    the directions: each score is still unbiased, and the comparison of two samples has
    less noise. Images in uint8 are divided by their range 255, as if they were floats
    in [0, 1]. In a ReLU network the number of kinks within the step depends on its
    length, so scores with different steps are not comparable.

    References
    ----------
    .. [1] I. Garg and K. Roy, "Samples with low loss curvature improve data
       efficiency", CVPR 2023.
    """
    _check(step, n_directions)
    rows = Rows(X, y, net.device)
    signs = _draw_signs(rows[:1][0], n_directions, check_random_state(random_state))

    def curvature_of_chunk(chunk):
        x, y = rows[chunk]
        return _curvature(net, x, y, step=step, signs=signs)

    with evaluation_mode(net.module_) as module:
        module.requires_grad_(False)  # only the gradient in the input is needed
        return in_chunks(curvature_of_chunk, len(rows), chunk_size)


def _check(step, n_directions):
    check_numbers(POSITIVE, step=step)
    check_numbers(POSITIVE_INTEGER, n_directions=n_directions)


def _curvature(net, x, y, *, step, signs):
    here = _input_gradients(net, x, y, moves=[0.0] * len(_movable(x)))  # (B, ...) each
    total = torch.zeros(len(y), device=y.device)
    for direction in signs:
        moves = [step * d for d in direction]
        there = _input_gradients(net, x, y, moves=moves)
        for a, b in zip(here, there):
            total = total + ((b - a) / step).reshape(len(a), -1).square().sum(1)
    return total / len(signs)  # (B,)


def _input_gradients(net, x, y, moves):
    """Return the gradient of each sample's loss in each input, after moving it."""
    moves, moved = iter(moves), []

    def move(t):
        if not _is_movable(t):
            return t
        unit = 255.0 if t.dtype == torch.uint8 else 1.0
        t = (t / unit + next(moves)).requires_grad_(True)
        moved.append(t)
        return t * unit

    outputs = net.infer(map_tensors(move, x))
    loss = sample_losses(net, outputs, y).sum()
    return torch.autograd.grad(loss, moved, materialize_grads=True)


def _is_movable(t):
    return t.is_floating_point() or t.dtype == torch.uint8


def _movable(x):
    found = []
    map_tensors(lambda t: found.append(t) if _is_movable(t) else None, x)
    if not found:
        raise InvalidInputError(
            "The curvature in the input needs floating-point inputs or uint8 "
            "images. Use another scorer, such as sharpness='fisher_trace'."
        )
    return found


def _draw_signs(x, n_directions, rng):
    """Draw random signs of the shape of one sample, for each direction and input."""

    def draw(t):
        signs = rng.randint(0, 2, size=t.shape[1:]) * 2.0 - 1.0
        dtype = t.dtype if t.is_floating_point() else torch.float32
        return torch.as_tensor(signs, dtype=dtype, device=t.device)

    return [[draw(t) for t in _movable(x)] for _ in range(n_directions)]


class InputCurvatureScorer(NetScorer):
    """Curvature of each sample's loss in the input, after Garg and Roy (2023).

    The parameters are those of :func:`input_curvature`. With the default
    ``random_state=0`` all members of an ensemble use the same directions.
    """

    function = input_curvature
    degree = 2
    needs_float32 = True  # a difference of gradients over a step of 1e-3

    def __init__(self, step=1e-3, n_directions=10, chunk_size=512, random_state=0):
        self.step = step
        self.n_directions = n_directions
        self.chunk_size = chunk_size
        self.random_state = random_state

    def check(self):
        """Raise if a parameter is invalid; ``fit`` calls this before training."""
        super().check()
        _check(self.step, self.n_directions)
        check_random_state(self.random_state)
