import gymnasium as gym
import numpy as np
import pytest
from counting import LENGTH, AnyPolicy, CountingEnv
from PIL import Image

from tfpolicy.train.environments import episode_seed
from tfpolicy.train.evaluation import Evaluation, evaluate


class StepPolicy(AnyPolicy):
    """Notes what it was told."""

    def get_initial_state(self):
        return [np.zeros(1)]

    def compute_actions(self, obs_batch, state_batches=None, **kwargs):
        self.told = [*vars(self).get("told", []), (obs_batch, state_batches, kwargs)]
        return np.array([1]), [state_batches[0] + 1], {}


def _policy(env, cls=AnyPolicy):
    return cls(env.observation_space, env.action_space)


def test_episodes_are_whole_and_seeded_whatever_acts():
    env = CountingEnv()
    expected = []
    for number in range(30):
        obs, _ = env.reset(seed=episode_seed(5, 0, number))
        expected.append(obs[LENGTH])
    for cls in (AnyPolicy, StepPolicy):
        result = evaluate(_policy(env, cls), env, episodes=30, seed=5)
        np.testing.assert_array_equal(result.lengths, expected)
        np.testing.assert_array_equal(result.returns, result.lengths * (result.lengths + 1) / 2)


def test_the_state_is_handed_on_and_begins_anew_with_each_episode():
    env = CountingEnv()
    policy = _policy(env, StepPolicy)
    result = evaluate(policy, env, episodes=3, explore=True)
    states = [state[0][0, 0] for _, state, _ in policy.told]
    assert states == [step for length in result.lengths for step in range(length)]
    assert {kwargs["explore"] for _, _, kwargs in policy.told} == {True}


def test_the_result_is_told_in_one_line():
    result = Evaluation(np.array([1.0, 3.0]), np.array([10, 20]))
    assert str(result) == (
        "mean return 2.00 over 2 episodes (std 1.00, lowest 1.00, highest 3.00), mean length 15.0"
    )


def test_what_acts_elsewhere_is_refused():
    with pytest.raises(ValueError, match="`observation_space` is Box.*environment's is Box"):
        evaluate(_policy(CountingEnv()), gym.make("CartPole-v1"))


def test_at_least_one_episode_is_asked_for():
    env = CountingEnv()
    with pytest.raises(ValueError, match="`episodes` must be at least 1, got 0"):
        evaluate(_policy(env), env, episodes=0)


def test_the_first_episode_is_filmed(tmp_path):
    env = gym.make("CartPole-v1", render_mode="rgb_array")
    path = tmp_path / "deep" / "film.gif"
    result = evaluate(_policy(env), env, episodes=2, video=path)
    env.close()
    with Image.open(path) as film:
        assert film.size == (600, 400)
        # Pillow joins frames that are alike to the pixel.
        assert result.lengths[0] // 2 < film.n_frames <= result.lengths[0] + 1


def test_filming_needs_frames(tmp_path):
    env = CountingEnv()
    with pytest.raises(ValueError, match='render_mode="rgb_array"`, got None'):
        evaluate(_policy(env), env, video=tmp_path / "film.gif")


def test_a_missing_video_package_is_named(tmp_path):
    try:
        import imageio_ffmpeg  # noqa: F401
    except ImportError:
        env = gym.make("CartPole-v1", render_mode="rgb_array")
        with pytest.raises(ImportError, match="imageio-ffmpeg"):
            evaluate(_policy(env), env, video=tmp_path / "film.mp4")
    else:
        pytest.skip("imageio-ffmpeg is installed")


def test_an_mp4_is_written_by_ffmpeg(tmp_path):
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    env = gym.make("CartPole-v1", render_mode="rgb_array")
    path = tmp_path / "film.mp4"
    result = evaluate(_policy(env), env, episodes=1, video=path)
    frames, _ = imageio_ffmpeg.count_frames_and_secs(str(path))
    assert frames == result.lengths[0] + 1
