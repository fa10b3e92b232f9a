"""Errors and warnings that the package raises on its own behalf.

Wrong parameters and wrong data raise ``ValueError`` or ``TypeError``, as
scikit-learn's users expect; each class below for such a case is a
subclass of both ``SharpBalanceError`` and the built-in one.
"""

__all__ = [
    "CheckpointError",
    "CheckpointMismatchError",
    "DivergenceError",
    "FileNotWrittenError",
    "InvalidInputError",
    "ModelFileError",
    "OutOfDeviceMemoryError",
    "SharpBalanceError",
    "SharpBalanceWarning",
    "UndefinedMetricWarning",
    "UnsupportedEngineError",
]


class SharpBalanceError(Exception):
    """Base of every error that the package raises on its own behalf."""


class InvalidInputError(SharpBalanceError, ValueError):
    """Data, a parameter or a module that cannot be worked with."""


class DivergenceError(SharpBalanceError, ArithmeticError):
    """The loss of a member became infinite or not a number."""


class UnsupportedEngineError(SharpBalanceError, ValueError):
    """The engine that was asked for cannot train this ensemble."""


class OutOfDeviceMemoryError(SharpBalanceError, MemoryError):
    """The device ran out of memory after every chunk size had been halved."""


class ModelFileError(SharpBalanceError, ValueError):
    """A model file is damaged, of a newer format, or not a model file."""


class CheckpointError(SharpBalanceError):
    """A checkpoint cannot be written or read."""


class CheckpointMismatchError(CheckpointError, ValueError):
    """A checkpoint belongs to other data or other parameters."""


class SharpBalanceWarning(UserWarning):
    """Base of every warning that the package gives on its own behalf."""


class UndefinedMetricWarning(SharpBalanceWarning):
    """A metric is undefined on this input; the value returned is documented."""


class FileNotWrittenError(SharpBalanceError, OSError):
    """A file cannot be written at the path that the user gave."""
