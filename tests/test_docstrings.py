"""Docstrings of the reference describe exactly the existing parameters."""

import ast
import importlib
import inspect
import re

from tests.test_docs import LISTED, PACKAGE

HEAD = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: : (.+))?$", flags=re.M)
SECTION = r"^{}\n-+\n(.*?)(?=^[^\n]+\n---|\Z)"
ELSEWHERE = r"arameters.* those of|See :func:.* for the parameters"
# Parameters that the protocols of corruptions describe for all of them.
CORRUPTIONS = [
    ("images", "severity", "rng"),
    ("X", "y", "severity", "rng", "reference"),
]
INTERNALS = ("members", "engine", "autodiff", "data")  # for readers of the code


def public():
    """Return public functions, classes and methods, without repetitions."""
    found = {}
    for module, name in LISTED:
        value = getattr(importlib.import_module(module), name)
        inside = module.removeprefix(f"{PACKAGE}.").partition(".")[0] in INTERNALS
        if inside or not callable(value) or module.endswith("exceptions"):
            continue
        if not getattr(value, "_is_protocol", False):
            found[f"{module}.{name}"] = value
        for base in reversed(getattr(value, "__mro__", ())):
            for each in vars(base) if base.__module__.startswith(PACKAGE) else ():
                is_public = each[0] != "_" and not each.endswith("_request")
                if is_public and inspect.isroutine(method := getattr(base, each)):
                    found.setdefault(f"{module}.{name}.{each}", method)
    return found


PUBLIC = public()


def described(function, *sections):
    """Return the described names with their types."""
    text = re.sub(r"\\\n\s+", "", inspect.getdoc(function) or "")
    bodies = [
        re.search(SECTION.format(section), text, flags=re.S | re.M)
        for section in sections
    ]
    return {
        name.strip("*"): kind
        for body in bodies
        if body
        for names, kind in HEAD.findall(body[1])
        for name in names.split(", ")
    }


def parameters(function):
    found = dict(inspect.signature(function).parameters)
    return {name: each for name, each in found.items() if name not in ("self", "cls")}


def test_every_parameter_is_described():
    assert len(PUBLIC) > 250
    missing = {}
    for name, value in PUBLIC.items():
        text = inspect.getdoc(value)
        assert text, name
        is_described = tuple(parameters(value)) in CORRUPTIONS or hasattr(
            value, "_fields"
        )  # a NamedTuple describes its fields
        if not is_described and not re.search(ELSEWHERE, text.replace("\n", " ")):
            known = {*described(value, "Parameters", "Attributes")}
            known |= {*re.findall(r"\w+", text)}  # "of shape (N, *shape)"
            missing[name] = [p for p in parameters(value) if p not in known]
    assert not {name: names for name, names in missing.items() if names}


def test_described_parameters_exist_with_their_defaults():
    wrong = []
    for name, value in PUBLIC.items():
        real = parameters(value)
        for parameter, kind in described(value, "Parameters").items():
            default = re.search(r"default=([^,]+)$", kind)
            if parameter not in real or (default and not _is(real[parameter], default)):
                wrong.append((name, parameter))
    assert not wrong


def _is(parameter, default):
    try:
        return ast.literal_eval(default[1]) == parameter.default
    except (SyntaxError, ValueError):  # the name of a class
        return default[1].endswith(getattr(parameter.default, "__name__", "?"))
