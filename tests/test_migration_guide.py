"""The guide for those who come from RLlib leaves nothing out, and its defaults are true."""

import ast
import re
from pathlib import Path

import pytest

import tfpolicy
from tfpolicy.config import ModelConfig
from tfpolicy.export.plain_pickle import read_plain_pickle
from tfpolicy.policies.ppo import PPOConfig

ROOT = Path(tfpolicy.__file__).parents[1]
GUIDE = (ROOT / "docs/migrating-from-rllib.md").read_text()
STATE = ROOT / "tests/data/rllib/ray-2.9.3/lstm/ckpt/policy_state.pkl"
# The config that RLlib itself stored with a policy.
THEIRS = read_plain_pickle(STATE.read_bytes())["policy_spec"]["config"]
# Public methods of TensorFlow policies, and the columns of sample batches, in Ray 2.9.3.
METHODS = """
    apply apply_gradients compute_actions compute_actions_from_input_dict compute_gradients
    compute_log_likelihoods compute_single_action copy export_checkpoint export_model
    extra_action_out_fn extra_compute_action_feed_dict extra_compute_action_fetches
    extra_compute_grad_feed_dict extra_compute_grad_fetches from_checkpoint from_state
    get_batch_divisibility_req get_exploration_info get_exploration_state get_host
    get_initial_state get_num_samples_loaded_into_buffer get_placeholder get_session get_state
    get_weights grad_stats_fn gradients import_model_from_h5 init_view_requirements is_recurrent
    learn_on_batch learn_on_batch_from_replay_buffer learn_on_loaded_batch load_batch_into_buffer
    loss_initialized make_model make_rl_module maybe_initialize_optimizer_and_loss
    num_state_tensors on_global_var_update postprocess_trajectory reset_connectors
    restore_connectors set_state set_weights stats_fn validate_spaces variables
    action_distribution_fn action_sampler_fn apply_gradients_fn build_apply_op compute_gradients_fn
    extra_learn_fetches_fn get_default_config
""".split()
COLUMNS = """
    action_dist action_dist_inputs action_logp action_prob actions advantages agent_index
    attention_masks dones env_id eps_id infos new_obs obs obs_embeds prev_actions prev_rewards
    returns_to_go rewards seq_lens state_in_0 state_out_0 t terminateds truncateds unroll_id
    value_targets vf_preds
""".split()
NAMES = {name for code in re.findall(r"`([^`\n]+)`", GUIDE) for name in re.findall(r"\w+", code)}
# In Ray a key with the value -1 is one that is gone.
KEYS = [key for key, value in THEIRS.items() if not isinstance(value, int) or value != -1]
MODEL_KEYS = [key for key, value in THEIRS["model"].items() if value != -1]


def rows(head):
    """The rows of the table whose first line is `head`, each a list of cells."""
    lines = GUIDE[GUIDE.index(head) :].splitlines()
    cells = [line.replace(r"\|", "/").strip("|").split("|") for line in lines[2:]]
    return [[cell.strip() for cell in row] for row in cells[: cells.index([""])]]


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("methods", METHODS),
        ("columns", COLUMNS),
        ("keys", [*KEYS, *MODEL_KEYS]),
        ("our keys", [*PPOConfig(), *ModelConfig()]),
    ],
)
def test_nothing_is_left_out(what, expected):
    optional = {"check_numerics", "jit_compile", "dual_clip", "standardize_advantages"}
    assert [name for name in expected if name not in NAMES | optional] == []


def test_defaults_that_differ_are_those_that_are_listed(package_defaults):
    ours = PPOConfig(**package_defaults)
    listed = {key.strip("`"): (a, b) for key, a, b, _ in rows("| key | RLlib | here | why |")}
    differing = {
        key for key in ours if key in THEIRS and key != "model" and ours[key] != THEIRS[key]
    }
    # Here `None` stands for what the other says by a class that does nothing.
    assert set(listed) == differing - {"callbacks"}
    for key, (theirs, here) in listed.items():
        assert ast.literal_eval(theirs.strip("`")) == THEIRS[key], key
        assert ast.literal_eval(here.strip("`")) == ours[key], key


def test_keys_of_the_same_name_are_keys():
    named = [row[0] for row in rows("| keys of the same name and meaning | remarks |")]
    keys = re.findall(r"`(\w+)`", " ".join(named))
    assert [key for key in keys if key not in PPOConfig()] == []
    assert [key for key in keys if key not in THEIRS and "tower" not in key] == []


def test_methods_that_are_said_to_be_there_are_there():
    for theirs, here, _ in rows("| RLlib | here | what differs, and why |"):
        if here == "the same":
            names = re.findall(r"`(\w+)", theirs)
        else:
            names = re.findall(r"`(\w+)`", here)
        for name in names:
            assert name == "Policy" or name in dir(tfpolicy.PPOPolicy), name


def test_the_example_runs(tmp_path, monkeypatch):
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    names = {}
    exec(example, names)
    assert names["report"].complete
    assert (tmp_path / "savedmodels/migrated/1/saved_model.pb").exists()
    names["policy"].close()
