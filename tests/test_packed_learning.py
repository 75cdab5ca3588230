"""Learning on one vector of all weights is learning on the weights, for any model and optimizer."""

import numpy as np
import pytest
import tensorflow as tf
from small_policies import OBS, THREE, Recurrent, Regression, recurrent_batch, regression_batch

from tfpolicy.models import Model, ModelOutput
from tfpolicy.sample_batch import SampleBatch

MINIBATCH, ROWS, EPOCHS = 4, 12, 3


class Open(Model):
    """Values are 0.5·x·w + b."""

    def __init__(self, *args):
        super().__init__(*args)
        self.w = tf.compat.v1.get_variable("w", initializer=tf.ones(4), use_resource=True)
        self.b = tf.compat.v1.get_variable("b", initializer=0.5, use_resource=True)

    def weights(self):
        return self.w, self.b

    def __call__(self, columns):
        w, b = self.weights()
        values = 0.5 * tf.linalg.matvec(columns["obs"], w) + b
        return ModelOutput(tf.tile(values[:, None], [1, 3]), values)


class Hidden(Open):
    """The same, with a variable that cannot be found among the attributes."""

    def __init__(self, *args):
        super().__init__(*args)
        w = self.w
        del self.w
        self.weights = lambda: (w, self.b)


class Scaled(Open):
    """The same, with a variable that is not trained."""

    def __init__(self, *args):
        super().__init__(*args)
        self.scale = tf.compat.v1.get_variable(
            "scale", initializer=1.0, trainable=False, use_resource=True
        )

    def weights(self):
        return self.scale * self.w, self.b


class LayerWise(tf.compat.v1.train.GradientDescentOptimizer):
    """Scales a gradient by the norm of its layer's weights, as LARS does."""

    def _resource_apply_dense(self, grad, handle):
        return super()._resource_apply_dense(grad * tf.norm(handle.read_value()), handle)


class LayerWiseRegression(Regression):
    """Learns layer by layer."""

    def optimizer(self, learning_rate):
        return LayerWise(learning_rate)


class AdamRegression(Regression):
    """Learns with Adam."""

    def optimizer(self, learning_rate):
        return tf.compat.v1.train.AdamOptimizer(learning_rate)


def policy(model, cls=Regression, **config):
    config = {"sgd_minibatch_size": MINIBATCH, "train_batch_size": ROWS, "seed": 1, **config}
    return cls(OBS, THREE, {"model": {"custom_model": model}, **config})


def learned(made):
    """The weights after some epochs in one call, and after the same as calls of their own."""
    start = made.get_state()
    rows_per_tower = made.load_batch_into_buffer(regression_batch(ROWS))
    made.learn_on_buffer(EPOCHS, shuffle=False)
    at_once = made.get_weights()
    made.set_state(start)
    for _ in range(EPOCHS):
        for offset in range(0, rows_per_tower, MINIBATCH * rows_per_tower // ROWS):
            made.learn_on_loaded_batch(offset)
    one_by_one = made.get_weights()
    made.set_state(start)
    for _ in range(EPOCHS):
        for begin in range(0, ROWS, MINIBATCH):
            rows = slice(begin, begin + MINIBATCH)
            made.learn_on_batch({k: v[rows] for k, v in regression_batch(ROWS).items()})
    return at_once, one_by_one, made.get_weights()


def check_equal(ways):
    first, *others = ways
    for other in others:
        for name, value in first.items():
            np.testing.assert_allclose(other[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("jit_compile", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("cls", [Regression, AdamRegression, LayerWiseRegression])
def test_weights_that_a_model_hides_learn_as_others_do(cls, jit_compile):
    ways = []
    for model in (Open, Hidden):
        # On one device: compiled towers cannot read what is hidden on another.
        with policy(model, cls, jit_compile=jit_compile, num_gpus=0) as made:
            before = made.get_weights()
            ways += learned(made)
        assert all(not np.array_equal(ways[-1][name], before[name]) for name in before)
    check_equal(ways)


@pytest.mark.parametrize("model, name", [(Hidden, "w"), (Scaled, "scale")])
def test_compiled_towers_refuse_a_variable_that_they_would_read_on_another_device(model, name):
    towers = {"num_gpus": 2, "fake_gpus": True}
    with pytest.raises(ValueError, match=f"`jit_compile` with several towers: .* reads {name} "):
        policy(model, jit_compile=True, **towers)
    with policy(model, jit_compile=False, **towers) as made:
        two = learned(made)
    with policy(model, jit_compile=True, num_gpus=0) as made:
        check_equal([*two, *learned(made)])


def reference(cls_step):
    """The epochs in NumPy: the gradient of the mean of (0.5·x·w + b − r)²."""
    batch = regression_batch(ROWS)
    w, b = np.ones(4), np.float64(0.5)
    for _ in range(EPOCHS):
        for begin in range(0, ROWS, MINIBATCH):
            x = batch["obs"][begin : begin + MINIBATCH].astype(float)
            error = 0.5 * x @ w + b - batch["rewards"][begin : begin + MINIBATCH]
            w, b = cls_step(w, (error @ x) / MINIBATCH), cls_step(b, 2.0 * error.mean())
    return {"w": w, "b": b}


def test_an_optimizer_that_knows_layers_sees_each_by_itself():
    with policy(Open, LayerWiseRegression, lr=0.05) as made:
        ways = learned(made)
    expected = reference(lambda weight, g: weight - 0.05 * np.linalg.norm(weight) * g)
    check_equal([expected, *ways])


def test_plain_gradient_descent_is_that_of_the_formula():
    with policy(Open, lr=0.05) as made:
        ways = learned(made)
    check_equal([reference(lambda weight, g: weight - 0.05 * g), *ways])


def test_sequences_learn_on_vectors_too():
    model = {"fcnet_hiddens": [4], "custom_model": Recurrent, "max_seq_len": 3}
    config = {"sgd_minibatch_size": 6, "train_batch_size": 12, "seed": 1, "model": model}
    batch = SampleBatch(recurrent_batch([3, 2, 3, 1]))
    batch["rewards"] = np.arange(len(batch["obs"]), dtype=np.float32)
    with AdamRegression(OBS, THREE, config) as made:
        start = made.get_state()
        rows_per_tower = made.load_batch_into_buffer(batch)
        made.learn_on_buffer(2, shuffle=False)
        at_once = made.get_weights()
        made.set_state(start)
        for _ in range(2):
            for offset in (0, rows_per_tower // 2):
                made.learn_on_loaded_batch(offset)
        check_equal([at_once, made.get_weights()])
        assert not np.array_equal(at_once["u"], start["weights"]["u"])
