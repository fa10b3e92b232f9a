"""Imported by the server of child processes, so that they start after a first fit."""

import torch

from tests.training.killing import KINDS, small_data

torch.set_num_threads(1)  # a fork does not copy threads
# The others are in slow tests only.
KINDS["stacked"](max_epochs=5).fit(*small_data())
