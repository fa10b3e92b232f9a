"""The training loop: plan, phases, checkpoints and progress."""

__all__: list[str] = []
