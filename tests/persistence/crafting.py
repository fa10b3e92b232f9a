"""Files with a changed tree and the digest that belongs to it."""

from sklearn_sharpbalance.persistence.allowed_names import SPECIAL_TAGS, special_value
from sklearn_sharpbalance.persistence.archive import read_archive, write_archive


def changed(path, change, kind="model", to=None):
    """Rewrite a file with a changed tree, in its place or to another one."""
    tags, special = (SPECIAL_TAGS, special_value) if kind == "model" else (None, None)
    tree = read_archive(path, kind, tags)
    change(tree)
    write_archive(to or path, kind, tree, special)
    return to or path


def crafted(model, tmp_path, change):
    """Return a changed copy of the file of a model."""
    return changed(model[1], change, to=tmp_path / "crafted")


def set_net(**entries):
    """Return a change of settings of the net."""
    given = {name: {"value": value} for name, value in entries.items()}
    return lambda tree: tree["net"]["params"].update(given)


def set_params(**entries):
    """Return a change of parameters of the ensemble."""
    given = {name: {"value": value} for name, value in entries.items()}
    return lambda tree: tree["params"].update(given)
