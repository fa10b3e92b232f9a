"""Random streams, torch settings, devices and precision of computations."""

__all__: list[str] = []
