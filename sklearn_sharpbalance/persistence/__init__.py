"""Model files, exports, and what identifies a fit."""

__all__: list[str] = []
