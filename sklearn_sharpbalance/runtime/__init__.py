"""Settings of the process and the machine that computations depend on."""

__all__: list[str] = []
