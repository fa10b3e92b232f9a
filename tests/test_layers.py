"""The house keeps its floors: a file imports from lower floors or its own folder."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "sklearn_sharpbalance"
FLOORS = [
    ["exceptions", "_version"],
    ["_validation", "_triton_probe"],
    ["_triton", "_parameters", "runtime"],
    ["optim", "autodiff", "networks", "theory", "corruption"],
    ["sharpness", "selection", "datasets"],
    ["data"],
    ["members"],
    ["metrics"],
    ["engine"],
    ["aggregation"],
    ["persistence"],
    ["plotting", "training"],
    ["joint"],
    ["ensemble"],
    ["model_selection"],
    ["evaluation"],
    ["__init__"],
    ["__main__"],
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_rooms(path):
    """Rooms of this package that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} relative import"
            if node.module == PACKAGE.name:
                names = [f"{PACKAGE.name}.{alias.name}" for alias in node.names]
            else:
                names = [node.module or ""]
        for name in names:
            package, _, rest = name.partition(".")
            if package == PACKAGE.name and rest:
                room = rest.split(".")[0]
                # What is no room is a name that the package's top re-exports.
                yield room if room in FLOOR else "__init__"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path):
    room = room_of(path)
    for other in imported_rooms(path):
        assert other == room or FLOOR[other] < FLOOR[room], (
            f"{path.relative_to(PACKAGE)} on floor {FLOOR[room]} imports {other} on "
            f"floor {FLOOR[other]}"
        )


def test_every_room_has_a_floor():
    assert {room_of(path) for path in FILES} == set(FLOOR)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_stay_short(path):
    assert len(path.read_text().splitlines()) <= 500
