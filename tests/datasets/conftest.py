import pytest


@pytest.fixture
def any_md5(monkeypatch):
    """Let torchvision read CIFAR files that are not the published ones."""
    cifar = pytest.importorskip("torchvision.datasets.cifar")
    monkeypatch.setattr(cifar, "check_integrity", lambda path, md5=None: True)
