"""The page about views says what is so."""

import re
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[1] / "docs" / "views.md"


@pytest.fixture(scope="module")
def made():
    """What the example of the page leaves behind."""
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names = {"__name__": "example"}
    exec(compile(example, str(PAGE), "exec"), names)
    yield names
    names["policy"].close()


def test_the_example_acts_on_what_it_says(made):
    policy = made["policy"]
    rng = np.random.default_rng(0)
    # The example has no seed: with any weights, sums may cancel and leave nothing but rounding.
    shapes = {name: weight.shape for name, weight in policy.get_weights().items()}
    policy.set_weights({name: rng.normal(size=shape) for name, shape in shapes.items()})
    columns = {
        "obs": rng.uniform(-1, 1, (2, 4)).astype(np.float32),
        "frames": rng.uniform(-1, 1, (2, 3, 4)).astype(np.float32),
        "prev_actions": np.array([0, 1]),
        "prev_actions_valid": np.array([False, True]),
    }
    found = policy.compute_actions_from_input_dict(columns)[2]
    rows = np.concatenate([columns["frames"].reshape(2, 12), [[-1], [1]]], axis=1)
    outputs = rows @ policy.get_weights()["kernel"]
    np.testing.assert_allclose(found["action_dist_inputs"], outputs[:, :-1], rtol=1e-5)
    np.testing.assert_allclose(found["vf_preds"], outputs[:, -1], rtol=1e-5)


def test_readme_leads_to_the_page():
    assert "docs/views.md" in (PAGE.parents[1] / "README.md").read_text()
