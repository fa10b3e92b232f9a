"""Training in CUDA graphs."""

__all__: list[str] = []
