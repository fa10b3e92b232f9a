"""Imported by the server that children are forked from: pays for the first fit once."""

import torch

from tests.training.killing import KINDS, small_data

torch.set_num_threads(1)  # a fork takes no threads along
for make in KINDS.values():
    make(max_epochs=5).fit(*small_data())
