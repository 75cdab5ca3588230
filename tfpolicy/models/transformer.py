"""The parts of a gated transformer: relative attention over a memory, and gates."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfpolicy.models.layers import HIDDEN_GAIN, LayerMaker
from tfpolicy.ops.masking import MASKED_LOGIT

_EPSILON = 1e-6


class LayerNorm(tf.Module):
    """Normalises the last axis to mean 0 and deviation 1, then scales and shifts it.

    Args:
        name: Of the variables, `<name>/gamma` and `<name>/beta`.
        width: Of the last axis.
    """

    def __init__(self, name: str, width: int):
        super().__init__(name)
        self.gamma = _variable(f"{name}/gamma", np.ones(width))
        self.beta = _variable(f"{name}/beta", np.zeros(width))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Returns γ (x − mean) / deviation + β."""
        centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
        return centred * tf.math.rsqrt(variance + _EPSILON) * self.gamma + self.beta


class GRUGate(tf.Module):
    """Mixes what a layer adds into what passes it by (Parisotto et al. 2019, section 3.2).

    r = σ(y W_r + x U_r), z = σ(y W_z + x U_z − b), g = (1 − z) x + z tanh(y W_g + (r x) U_g).

    Args:
        name: Of the layers, `<name>_y` with the W and `<name>_x`, `<name>_rx` with the U.
        width: Of x and y.
        bias: b; above 0 the gate starts nearly closed, and the network as one without memory.
        layers: Makes the layers.
    """

    def __init__(self, name: str, width: int, bias: float, layers: LayerMaker):
        super().__init__(name)
        self.y = layers.built_dense(f"{name}_y", width, 3 * width, None, 1.0)
        self.x = layers.built_dense(f"{name}_x", width, 2 * width, None, 1.0)
        self.rx = layers.built_dense(f"{name}_rx", width, width, None, 1.0)
        self.bias = _variable(f"{name}/bias", np.full(width, bias))

    def __call__(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """Returns g [..., width]."""
        y_r, y_z, y_g = tf.split(self.y(y), 3, axis=-1)
        x_r, x_z = tf.split(self.x(x), 2, axis=-1)
        z = tf.sigmoid(y_z + x_z - self.bias)
        candidate = tf.tanh(y_g + self.rx(tf.sigmoid(y_r + x_r) * x))
        return (1.0 - z) * x + z * candidate


class RelativeAttention(tf.Module):
    """Attention with relative positions (Dai et al. 2019, arXiv:1901.02860).

    The logit of query i and key j is (q_i + u) · k_j + (q_i + v) · r_{i−j}, over √d, where r is
    a projected sinusoid of the distance.

    Args:
        name: Prefix of the layers.
        width: Of inputs and outputs.
        num_heads: Heads.
        head_dim: Width d of a head.
        layers: Makes the layers.
    """

    def __init__(self, name: str, width: int, num_heads: int, head_dim: int, layers: LayerMaker):
        super().__init__(name)
        self._num_heads, self._head_dim, self._width = num_heads, head_dim, width
        inner = num_heads * head_dim
        self.query = layers.built_dense(f"{name}_query", width, inner, None, 1.0)
        self.key = layers.built_dense(f"{name}_key", width, inner, None, 1.0)
        self.value = layers.built_dense(f"{name}_value", width, inner, None, 1.0)
        self.position = layers.built_dense(f"{name}_position", width, inner, None, 1.0)
        self.out = layers.built_dense(f"{name}_out", inner, width, None, 1.0)
        self.u = _variable(f"{name}/u", np.zeros((num_heads, head_dim)))
        self.v = _variable(f"{name}/v", np.zeros((num_heads, head_dim)))

    def __call__(self, queries: tf.Tensor, context: tf.Tensor, allowed: tf.Tensor) -> tf.Tensor:
        """Attends.

        Args:
            queries: [S, T, width], the last T of the L steps of the context.
            context: [S, L, width].
            allowed: [S, T, L] bool, which keys a query sees; at least one of them.

        Returns:
            [S, T, width].
        """
        num_queries, num_keys = queries.shape[1], context.shape[1]
        q = self._heads(self.query(queries), num_queries)
        k = self._heads(self.key(context), num_keys)
        v = self._heads(self.value(context), num_keys)
        # Distances from L − 1, that of the last query and the first key, down to 0.
        sinusoids = _sinusoids(np.arange(num_keys)[::-1], self._width)
        r = tf.reshape(self.position(sinusoids), [num_keys, self._num_heads, self._head_dim])
        by_content = tf.einsum("sthd,slhd->shtl", q + self.u, k)
        by_distance = tf.einsum("sthd,lhd->shtl", q + self.v, r)
        logits = by_content + _shift(by_distance, num_queries, num_keys)
        logits = tf.where(allowed[:, None], logits * self._head_dim**-0.5, MASKED_LOGIT)
        attended = tf.einsum("shtl,slhd->sthd", tf.nn.softmax(logits), v)
        inner = self._num_heads * self._head_dim
        return self.out(tf.reshape(attended, [-1, num_queries, inner]))

    def _heads(self, x: tf.Tensor, length: int) -> tf.Tensor:
        return tf.reshape(x, [-1, length, self._num_heads, self._head_dim])


class Unit(tf.Module):
    """One gated transformer layer: attention and a small network, normalised and gated each.

    Args:
        name: Prefix of the layers.
        width: Of inputs and outputs.
        num_heads: Of the attention.
        head_dim: Of the attention.
        mlp_dim: Hidden width of the small network.
        gate_bias: Of both gates.
        layers: Makes the layers.
    """

    def __init__(
        self,
        name: str,
        width: int,
        num_heads: int,
        head_dim: int,
        mlp_dim: int,
        gate_bias: float,
        layers: LayerMaker,
    ):
        super().__init__(name)
        self.norm = LayerNorm(f"{name}_norm", width)
        self.attention = RelativeAttention(name, width, num_heads, head_dim, layers)
        self.gate = GRUGate(f"{name}_gate", width, gate_bias, layers)
        self.mlp_norm = LayerNorm(f"{name}_mlp_norm", width)
        self.hidden = layers.built_dense(f"{name}_mlp_1", width, mlp_dim, "relu", HIDDEN_GAIN)
        self.mlp_out = layers.built_dense(f"{name}_mlp_2", mlp_dim, width, "relu", HIDDEN_GAIN)
        self.mlp_gate = GRUGate(f"{name}_mlp_gate", width, gate_bias, layers)

    def __call__(self, x: tf.Tensor, memory: tf.Tensor, allowed: tf.Tensor) -> tf.Tensor:
        """Returns [S, T, width].

        Args:
            x: [S, T, width].
            memory: [S, M, width], what x was at the M steps before.
            allowed: [S, T, M + T] bool.
        """
        context = self.norm(tf.concat([memory, x], axis=1))
        attended = self.attention(context[:, memory.shape[1] :], context, allowed)
        x = self.gate(x, tf.nn.relu(attended))
        return self.mlp_gate(x, self.mlp_out(self.hidden(self.mlp_norm(x))))


def _variable(name: str, value: np.ndarray) -> tf.Variable:
    return tf.compat.v1.get_variable(name, initializer=value.astype(np.float32), use_resource=True)


def _sinusoids(distances: np.ndarray, width: int) -> np.ndarray:
    """Sines and cosines of distances [L], of wavelengths from 2π to 20000π: [L, width]."""
    rates = 10000.0 ** (-np.arange(0, width, 2) / width)
    angles = distances[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :width].astype(np.float32)


def _shift(by_distance: tf.Tensor, num_queries: int, num_keys: int) -> tf.Tensor:
    """Moves row i of [S, H, T, L] to the left by T − 1 − i, so that columns become keys.

    What comes in from the right belongs to keys after the query, which it never sees.
    """
    if num_queries == 1:
        return by_distance
    num_heads = by_distance.shape[1]
    padded = tf.pad(by_distance, [[0, 0], [0, 0], [0, 0], [1, 0]])
    turned = tf.reshape(padded, [-1, num_heads, num_keys + 1, num_queries])
    return tf.reshape(turned[:, :, 1:], [-1, num_heads, num_queries, num_keys])
