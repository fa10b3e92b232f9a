"""Joint training of all members (SED, A2D, DivDis)."""

__all__: list[str] = []
