"""A module imports only from lower floors, and `import tfpolicy` loads no TensorFlow."""

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tfpolicy

PACKAGE = Path(tfpolicy.__file__).parent
COMMANDS = ("train", "evaluate", "export", "inspect", "verify", "convert")

# The floor of each module, or of all modules of a folder. Whoever adds one says where it belongs.
FLOORS = {
    # NumPy and gymnasium only.
    "callbacks": 0,
    "checksums": 0,
    "columns": 0,
    "config": 0,
    "exact_json": 0,
    "files": 0,
    "locks": 0,
    "moments": 0,
    "npz": 0,
    "policy": 0,
    "returns": 0,
    "sample_batch": 0,
    "schedules": 0,
    "sequences": 0,
    "spaces": 0,
    "typed_values": 0,
    "view_requirement": 0,
    # TensorFlow, stateless.
    "distributions": 1,
    "ops": 1,
    # TensorFlow, holds variables.
    "coefficient": 2,
    "exploration": 2,
    "models": 2,
    "preprocessing": 2,
    # The graph machine.
    "graph": 3,
    # What leaves the process.
    "checkpoint": 4,
    "description": 4,
    "export": 4,
    "policy_state": 4,
    "hooks": 4,
    "learning": 4,
    # The policy that wires them.
    "advantages": 5,
    "tf_policy": 5,
    # Leaves.
    "policies": 6,
    "served_policy": 6,
    # Programs.
    "__main__": 7,
    "cli": 7,
    "conversion": 7,
    "inspection": 7,
    "serving": 7,
    "train": 7,
    "verification": 7,
}
LEAVES, PROGRAMS = 6, 7
# What a module imports when it imports from the package itself.
FACE = ""
ALLOWED_ON_FLOOR_0 = {"numpy", "gymnasium", *sys.stdlib_module_names}


def sources(package=PACKAGE):
    """The text of every module by its dotted name below the package; folders by their own name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        # The face imports lazily, by names in strings.
        if name != FACE:
            found[name] = path.read_text()
    return found


def imports(module, modules):
    """What a module imports: (modules of the package, names of other packages)."""
    inside, outside = set(), set()
    for node in ast.walk(ast.parse(modules[module])):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            # `from tfpolicy.graph import session` means a module, `... import Session` a name.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, _, rest = name.partition(".")
            if first != "tfpolicy":
                outside.add(first)
                continue
            if name == "tfpolicy.__version__":
                # All else that the face offers lives somewhere else.
                continue
            while rest and rest not in modules:
                rest = rest.rpartition(".")[0]
            inside.add(rest or FACE)
    return inside - {module}, outside


def floor(module):
    return FLOORS[module.partition(".")[0]]


def violations(modules):
    """Everything that breaks a rule, as sentences."""
    for module in modules:
        inside, outside = imports(module, modules)
        if floor(module) == 0:
            for name in sorted(outside - ALLOWED_ON_FLOOR_0):
                yield f"{module} on floor 0 imports {name}"
        for other in sorted(inside):
            if other == FACE:
                if floor(module) < PROGRAMS:
                    yield f"{module} imports from the face of the package"
            elif floor(other) > floor(module):
                yield f"{module} on floor {floor(module)} imports {other} on {floor(other)}"
            elif floor(module) == floor(other) == LEAVES and not _may_share(module, other):
                yield f"{module} imports {other}, another leaf"
    yield from (f"{' -> '.join(cycle)} is a cycle" for cycle in cycles(modules))


def _may_share(module, other):
    """A leaf may import its own folder's base, and the list of policies that a folder's face is."""
    folder = module.rpartition(".")[0]
    return other == f"{folder}.base" or other in FLOORS


def cycles(modules):
    """One cycle of imports among the modules for each module that closes one."""
    state = {}
    found = []

    def visit(module, path):
        state[module] = "open"
        for other in sorted(imports(module, modules)[0] - {FACE}):
            if state.get(other) == "open":
                found.append([*path[path.index(other) :], other])
            elif other not in state:
                visit(other, [*path, other])
        state[module] = "done"

    for module in modules:
        if module not in state:
            visit(module, [module])
    return found


def test_every_module_imports_only_from_lower_floors_and_none_in_a_cycle():
    assert list(violations(sources())) == []


def test_every_module_has_a_floor_and_every_floor_its_module():
    assert {name.partition(".")[0] for name in sources()} == set(FLOORS)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"config": "import tensorflow as tf"}, "config on floor 0 imports tensorflow"),
        (
            {"returns": "def f():\n    import scipy.signal"},
            "returns on floor 0 imports scipy",
        ),
        ({"returns": "from tfpolicy import TFPolicy"}, "returns imports from the face"),
        (
            {"ops": "", "ops.values": "from tfpolicy.models import Model", "models": ""},
            "ops.values on floor 1 imports models on 2",
        ),
        (
            {"graph": "", "graph.session": "import tfpolicy.tf_policy", "tf_policy": ""},
            "graph.session on floor 3 imports tf_policy on 5",
        ),
        (
            {
                "policies": "",
                "policies.a2c": "from tfpolicy.policies.pg import PGConfig",
                "policies.pg": "",
            },
            "policies.a2c imports policies.pg, another leaf",
        ),
        (
            {
                "graph": "",
                "graph.a": "from tfpolicy.graph import b",
                "graph.b": "import tfpolicy.graph.a",
            },
            "graph.a -> graph.b -> graph.a is a cycle",
        ),
    ],
)
def test_each_kind_of_violation_is_seen(changes, sentence):
    assert any(sentence in violation for violation in violations(changes))


def test_what_is_allowed_is_no_violation():
    modules = {
        "config": "import dataclasses\nimport numpy as np\nfrom tfpolicy import __version__",
        "policies": "from tfpolicy.tf_policy import TFPolicy",
        "policies.base": "from tfpolicy.config import Config",
        "policies.ppo": "from tfpolicy.policies.base import add\nimport tensorflow as tf",
        "served_policy": "from tfpolicy.policies import policy_class",
        "tf_policy": "from tfpolicy import config",
    }
    assert list(violations(modules)) == []


@pytest.mark.parametrize("name", tfpolicy.__all__)
def test_public_name_can_be_imported_and_is_documented(name):
    thing = vars(tfpolicy).get(name) or tfpolicy.__getattr__(name)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        assert inspect.getdoc(thing), name
        assert name in dir(tfpolicy)
    else:
        assert isinstance(thing, str)


def test_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'tfpolicy' has no attribute 'PPOPolcy'"):
        tfpolicy.PPOPolcy  # noqa: B018


def test_importing_the_package_and_asking_for_help_loads_no_tensorflow():
    program = f"""
import contextlib, io, sys
import tfpolicy
from tfpolicy import PolicySpec, SampleBatch, ViewRequirement
from tfpolicy.cli import main
for arguments in [["--help"], *([command, "--help"] for command in {COMMANDS})]:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main(arguments)
    assert "Usage: tfpolicy" in text.getvalue(), (arguments, text.getvalue())
heavy = {{"tensorflow", "tf_keras", "tensorflow_probability", "matplotlib"}} & {{*sys.modules}}
assert not heavy, heavy
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
    )
    assert done.returncode == 0, done.stderr
