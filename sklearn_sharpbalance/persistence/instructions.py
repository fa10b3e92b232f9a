"""What compiled code refers to and what it changes, read from its instructions."""

import dis
import types
from collections.abc import Iterator
from functools import lru_cache

__all__ = ["attribute_names", "changed_names", "global_names"]

GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
CHANGES = {
    *("append", "extend", "insert", "remove", "clear", "pop", "popitem", "update"),
    *("setdefault", "add", "discard", "sort", "reverse"),
}


@lru_cache(maxsize=4096)
def global_names(code: types.CodeType) -> frozenset[str]:
    """Global names that code reads, that of functions inside included.

    Attributes are none, although ``co_names`` lists them too: a worker process gets
    the globals of a function only, and would find others than its parent.

    Examples
    --------
    >>> sorted(global_names((lambda x: [scale(i.first) for i in x]).__code__))
    ['scale']
    """
    names = {s.argval for part in _all(code) for s in _steps(part) if _is_global(s)}
    return frozenset(names)


@lru_cache(maxsize=4096)
def attribute_names(code: types.CodeType) -> frozenset[str]:
    """Names of attributes that code reads, that of functions inside included."""
    found = (s for part in _all(code) for s in _steps(part))
    return frozenset(s.argval for s in found if s.opname in ATTRIBUTES)


@lru_cache(maxsize=4096)
def changed_names(code: types.CodeType) -> frozenset[str]:
    """Globals, and ``.attributes`` of globals or classes, that code itself changes.

    They are its memory (a counter, a list of losses), not its settings. Found are
    assignments, assignments to items with a plain key, and calls of the methods by
    which lists, sets and dictionaries change.

    Examples
    --------
    >>> def forward(self, x):
    ...     type(self).calls += 1
    ...     seen.append(x)
    ...     return x * self.width
    >>> sorted(changed_names(forward.__code__))
    ['.calls', 'seen']
    """
    return frozenset(name for part in _all(code) for name in _changed(part))


def _all(code) -> Iterator[types.CodeType]:
    yield code
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _all(part)


def _steps(code):
    return [s for s in dis.get_instructions(code) if s.opname != "EXTENDED_ARG"]


def _is_global(step):
    return step.opname in GLOBALS


def _changed(code):
    steps = _steps(code)
    for i, step in enumerate(steps):
        before = steps[i - 1]
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            yield step.argval
        elif step.opname == "STORE_ATTR":
            if _is_shared(_target(steps, i)):
                yield f".{step.argval}"
        elif step.opname in ATTRIBUTES and step.argval in CHANGES:
            yield from _named(before)
        elif step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
            yield from _named(steps[i - 2])
        elif step.opname == "COPY" and before.opname == "COPY":  # d[key] += value
            yield from _named(steps[i - 3])


def _target(steps, i):
    """The step that loads what an attribute is assigned to."""
    if steps[i - 1].opname != "SWAP":
        return steps[i - 1]
    # In place: the target is copied, then its attribute read, before the new value.
    for j in range(i - 1, 1, -1):
        if steps[j].opname == "LOAD_ATTR" and steps[j].argval == steps[i].argval:
            return steps[j - 2]
    return steps[i - 1]


def _is_shared(step):
    """Whether a step loads a global or a class, which outlive a single object."""
    return (
        _is_global(step)
        or step.opname == "LOAD_DEREF"
        or step.opname.startswith("CALL")  # type(self)
        or step.argval in ("cls", "__class__")
    )


def _named(step):
    if _is_global(step):
        yield step.argval
    elif step.opname in ATTRIBUTES:
        yield f".{step.argval}"
