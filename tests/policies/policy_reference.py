"""The algorithms once more, one row at a time in NumPy and SciPy: slow, to be read beside papers.

π(a|s) is a policy, V(s) a value, Â an advantage, r_t(θ) = π(a_t|s_t) / π_old(a_t|s_t).
"""

import dataclasses

import gymnasium as gym
import numpy as np
import scipy.special
import scipy.stats

OBS = gym.spaces.Box(-1.0, 1.0, (3,))
MODEL = {"fcnet_hiddens": [4], "fcnet_activation": "tanh"}


class CategoricalPi:
    """π(·|s) of a discrete action space."""

    action_space = gym.spaces.Discrete(3)
    num_inputs = 3

    def __init__(self, inputs):
        self.log_p = inputs - scipy.special.logsumexp(inputs)

    def log_prob(self, a):
        return self.log_p[a]

    def entropy(self):
        return scipy.stats.entropy(np.exp(self.log_p))

    def kl(self, other):
        return scipy.stats.entropy(np.exp(self.log_p), np.exp(other.log_p))

    @staticmethod
    def draw(rng, inputs):
        return rng.integers(0, 3)


class GaussianPi:
    """π(·|s) of a box of two dimensions: independent normal distributions."""

    action_space = gym.spaces.Box(-1.0, 1.0, (2,))
    num_inputs = 4

    def __init__(self, inputs):
        self.mu, self.sigma = inputs[:2], np.exp(inputs[2:])

    def log_prob(self, a):
        return scipy.stats.norm.logpdf(a, self.mu, self.sigma).sum()

    def entropy(self):
        return scipy.stats.norm.entropy(self.mu, self.sigma).sum()

    def kl(self, other):
        # log σ₂/σ₁ + (σ₁² + (μ₁ − μ₂)²) / 2σ₂² − ½
        squares = self.sigma**2 + (self.mu - other.mu) ** 2
        terms = np.log(other.sigma / self.sigma) + squares / (2 * other.sigma**2) - 0.5
        return terms.sum()

    @staticmethod
    def draw(rng, inputs):
        return rng.normal(inputs[:2], np.exp(inputs[2:])).astype(np.float32)


PIS = {"discrete": CategoricalPi, "gaussian": GaussianPi}


def known_weights(policy, seed=7):
    """Weights of the policy's names and shapes, large enough to make every row differ."""
    rng = np.random.default_rng(seed)
    weights = policy.get_weights()
    return {name: rng.normal(0, 0.6, w.shape).astype(np.float32) for name, w in weights.items()}


def network(weights, obs):
    """Inputs of π and V of each row: one hidden layer of tanh each."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    hidden = np.tanh(obs @ w["fc_1/kernel"] + w["fc_1/bias"])
    hidden_v = np.tanh(obs @ w["fc_value_1/kernel"] + w["fc_value_1/bias"])
    values = hidden_v @ w["value_out/kernel"] + w["value_out/bias"]
    return hidden @ w["fc_out/kernel"] + w["fc_out/bias"], values[:, 0]


def batch_of(pi, rows, seed=2):
    """What actor-critics learn from; the actions are those of another, older policy."""
    rng = np.random.default_rng(seed)
    old_inputs = rng.normal(0, 0.5, (rows, pi.num_inputs)).astype(np.float32)
    actions = np.array([pi.draw(rng, inputs) for inputs in old_inputs])
    logp_old = [pi(inputs).log_prob(a) for inputs, a in zip(old_inputs, actions, strict=True)]
    return {
        "obs": rng.uniform(-1, 1, (rows, 3)).astype(np.float32),
        "actions": actions,
        "action_dist_inputs": old_inputs,
        "action_logp": np.array(logp_old, np.float32),
        "vf_preds": rng.normal(0, 1, rows).astype(np.float32),
        "advantages": rng.normal(1, 3, rows).astype(np.float32),
        "value_targets": rng.normal(0, 2, rows).astype(np.float32),
    }


@dataclasses.dataclass
class Terms:
    """The means of a loss, by the names under which a policy reports them."""

    total_loss: float
    policy_loss: float
    entropy: float
    vf_loss: float = 0.0
    kl: float = 0.0
    vf_explained_var: float = 0.0


def standardized(advantages):
    """(Â − mean Â) / std Â."""
    x = advantages.astype(np.float64)
    return (x - x.mean()) / x.std()


def explained_variance(targets, values):
    """1 − Var(R − V) / Var(R); a single row leaves nothing to explain."""
    targets = targets.astype(np.float64)
    return 1 - (targets - values).var() / targets.var() if len(targets) > 1 else 1.0


def pg_terms(pi, weights, batch):
    """REINFORCE: −mean(log π(a|s) G)."""
    inputs, _ = network(weights, batch["obs"])
    pis = [pi(row) for row in inputs]
    logp = [p.log_prob(a) for p, a in zip(pis, batch["actions"], strict=True)]
    loss = np.mean([-lp * g for lp, g in zip(logp, batch["advantages"], strict=True)])
    return Terms(loss, loss, np.mean([p.entropy() for p in pis]))


def a2c_terms(pi, weights, batch, c_v, c_e):
    """A2C: −mean(log π(a|s) Â) + c_v mean((V(s) − R)²) − c_e mean H(π(·|s))."""
    terms = pg_terms(pi, weights, batch)
    _, v = network(weights, batch["obs"])
    residuals = batch["value_targets"] - v
    terms.vf_loss = np.mean([residual**2 for residual in residuals])
    terms.total_loss += c_v * terms.vf_loss - c_e * terms.entropy
    terms.vf_explained_var = explained_variance(batch["value_targets"], v)
    return terms


def ppo_terms(
    pi, weights, batch, *, epsilon, c_v, beta, c_e, advantages, vf_clip=None, dual_clip=None
):
    """PPO: −mean L_CLIP + c_v mean L_VF + β mean KL(π_old ‖ π) − c_e mean H(π)."""
    inputs, values = network(weights, batch["obs"])
    rows = {"policy_loss": [], "vf_loss": [], "kl": [], "entropy": []}
    for i, (theta, v) in enumerate(zip(inputs, values, strict=True)):
        pi_new, pi_old = pi(theta), pi(batch["action_dist_inputs"][i].astype(np.float64))
        a, adv = batch["actions"][i], advantages[i]
        r = np.exp(pi_new.log_prob(a) - batch["action_logp"][i])
        objective = min(r * adv, np.clip(r, 1 - epsilon, 1 + epsilon) * adv)
        if dual_clip is not None and adv < 0:
            objective = max(objective, dual_clip * adv)
        rows["policy_loss"].append(-objective)
        target, v_old = batch["value_targets"][i], batch["vf_preds"][i]
        errors = [(v - target) ** 2]
        if vf_clip is not None:
            errors.append((v_old + np.clip(v - v_old, -vf_clip, vf_clip) - target) ** 2)
        rows["vf_loss"].append(max(errors))
        rows["kl"].append(pi_old.kl(pi_new))
        rows["entropy"].append(pi_new.entropy())
    means = {name: np.mean(column) for name, column in rows.items()}
    total = means["policy_loss"] + c_v * means["vf_loss"]
    total += beta * means["kl"] - c_e * means["entropy"]
    explained = explained_variance(batch["value_targets"], values)
    return Terms(total, vf_explained_var=explained, **means)


def assert_gradients(gradients, loss, weights, step=1e-5):
    """Compares gradients with central differences of loss(weights) along random directions."""
    rng = np.random.default_rng(0)
    exact = {name: weight.astype(np.float64) for name, weight in weights.items()}
    for (name, weight), gradient in zip(exact.items(), gradients, strict=True):
        for _ in range(3):
            d = rng.normal(size=weight.shape)
            sides = [loss({**exact, name: weight + sign * step * d}) for sign in (1, -1)]
            expected = (sides[0] - sides[1]) / (2 * step)
            np.testing.assert_allclose((gradient * d).sum(), expected, 1e-3, 1e-5, err_msg=name)


def gae(rewards, values, next_values, terminated, gamma, lambda_):
    """Â_t = Σ_{k≥t} (γλ)^{k−t} δ_k over one fragment; equation 16 of Schulman et al. 2016.

    δ_t = r_t + γ V(s_{t+1}) − V(s_t), without V(s_{t+1}) if the episode terminated in s_{t+1}.
    """
    T = len(rewards)
    alive = [1.0] * (T - 1) + [0.0 if terminated else 1.0]
    delta = [rewards[t] + gamma * alive[t] * next_values[t] - values[t] for t in range(T)]
    discount = gamma * lambda_
    sums = [sum(discount ** (k - t) * delta[k] for k in range(t, T)) for t in range(T)]
    return np.array(sums)
