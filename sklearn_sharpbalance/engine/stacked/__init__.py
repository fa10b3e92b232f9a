"""Training of MLP-like members as one network."""

__all__: list[str] = []
