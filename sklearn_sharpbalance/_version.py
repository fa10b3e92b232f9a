"""Version of the package, which kept work is known by as well."""

__version__ = "0.1.0"
