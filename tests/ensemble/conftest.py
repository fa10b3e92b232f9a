"""Fixtures of the tests about checkpoints."""

import shutil

import pytest

from sklearn_sharpbalance.ensemble.checkpoint import CheckpointFolder


@pytest.fixture
def snapshots(tmp_path, monkeypatch):
    """Copies of the checkpoint folder after every write."""
    copies = []
    original = CheckpointFolder.write

    def write(self, *args, **kwargs):
        original(self, *args, **kwargs)
        copies.append(tmp_path / f"copy-{len(copies)}")
        shutil.copytree(self.folder, copies[-1])

    monkeypatch.setattr(CheckpointFolder, "write", write)
    return copies
