"""What is read and passed through networks beside the training, under own seeds."""

from collections.abc import Iterator
from contextlib import contextmanager

from sklearn_sharpbalance.members.state import seeded

__all__ = ["own_draws"]


@contextmanager
def own_draws(seed: int = 0, device="cpu") -> Iterator[None]:
    """Let items of a Dataset, and networks, draw from generators seeded here.

    Those of torch, numpy and Python are as they were after the block. Networks may
    draw in evaluation mode too, as those with dropout that never rests do.

    Parameters
    ----------
    seed : int, default=0
    device : str or torch.device, default="cpu"
        Where the block computes.

    Examples
    --------
    >>> import torch
    >>> before = torch.get_rng_state()
    >>> with own_draws(seed=5):
    ...     first = torch.rand(1)
    >>> with own_draws(seed=5):
    ...     torch.equal(torch.rand(1), first)
    True
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    with seeded(device):
        seeded.start(seed, device)
        yield
