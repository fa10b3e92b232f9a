"""Model files, exports, and fingerprints of code, data and settings."""

__all__: list[str] = []
