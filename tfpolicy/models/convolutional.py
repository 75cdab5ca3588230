"""Convolutional networks for images."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import gymnasium as gym
import tensorflow as tf
import tf_keras

from tfpolicy.config import ModelConfig
from tfpolicy.models.encoder import Encoder
from tfpolicy.models.feed_forward import FeedForward
from tfpolicy.models.layers import HIDDEN_GAIN, LayerMaker
from tfpolicy.preprocessing import scale_box

Pair = tuple[int, int]


class ConvFilter(NamedTuple):
    """One convolution: number of output channels, and (height, width) of kernel and stride."""

    channels: int
    kernel: Pair
    stride: Pair


# By the height and width of the image; the same as in RLlib, so that its weights fit.
DEFAULT_FILTERS: dict[Pair, list[list[Any]]] = {
    (42, 42): [[16, 4, 2], [32, 4, 2], [256, 11, 1]],
    (64, 64): [[32, 4, 2], [64, 4, 2], [128, 4, 2], [256, 4, 2]],
    (84, 84): [[16, 8, 4], [32, 4, 2], [256, 11, 1]],
    (96, 96): [[16, 8, 4], [32, 4, 2], [256, 11, 2]],
}
# Smaller ones are boards and grids of symbols rather than pictures.
_SMALLEST_SIDE = 10


def is_image(space: gym.Space, config: ModelConfig) -> bool:
    """Whether observations of `space` go through convolutions.

    That are Boxes [H, W, C], with one channel (gray), three, or those of several stacked frames. If
    the config names no `conv_filters`, H and W must be at least 10; `conv_filters=[]` takes all of
    them as vectors.
    """
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 3:
        return False
    if config.conv_filters is None:
        return min(space.shape[:2]) >= _SMALLEST_SIDE
    return len(config.conv_filters) > 0


class ImageEncoder(Encoder):
    """Convolutions `conv1..n` on one image, `conv_value_1..n` for values.

    All are padded to keep the size but for the stride; only the last is not, so that with its
    kernel as large as what is left it makes one vector of the image. Layers of
    `post_fcnet_hiddens` follow.
    """

    head_names = ("conv_out", "conv_value_out", "value_out")

    def __init__(self, observation_space: gym.Space, config: ModelConfig, layers: LayerMaker):
        super().__init__(observation_space, config, layers)
        self._space = cast(gym.spaces.Box, observation_space)
        self._stack = ConvStack(self._space.shape, config, layers, "observation_space")

    def tensors(self, observation: Any) -> list[tf.Tensor]:
        """The image [B, H, W, C] float32, bytes scaled to [0, 1]."""
        return [scale_box(self._space, observation)]

    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """The image."""
        return {"observations": self._space.shape}

    def features(self, inputs: list[Any], value: bool = False) -> Any:
        """The last convolution, flattened, or the last layer after it."""
        config = self.config
        features = self._stack(inputs[0], "conv_value_" if value else "conv")
        prefix = "post_fcnet_value" if value else "post_fcnet"
        return self.layers.hidden(
            features, prefix, config.post_fcnet_hiddens, config.post_fcnet_activation
        )

    def head(self, name: str, features: Any, width: int, gain: float) -> Any:
        """A linear layer, as a convolution where it reads a convolution of size 1 x 1."""
        if self.config.post_fcnet_hiddens or self._stack.size_out != (1, 1):
            return super().head(name, features, width, gain)
        point = tf_keras.layers.Reshape((1, 1, features.shape[-1]), name=f"{name}_in")(features)
        outputs = self.layers.conv(name, width, (1, 1), (1, 1), "same", None, gain)(point)
        return self.layers.flatten(f"{name}_flat")(outputs)


class Convolutional(FeedForward):
    """Convolutions and heads `conv_out` and `conv_value_out` (`value_out` on shared features)."""

    encoder_class = ImageEncoder
    name = "convolutional"


class ConvStack:
    """The convolutions of one image.

    Args:
        shape: Of the image, (H, W, C).
        config: The model's, with `conv_filters` and `conv_activation`.
        layers: Makes the layers.
        what: Names the image in errors.

    Raises:
        ValueError: There are no default filters for such an image, or the given ones do not fit.
    """

    def __init__(self, shape: tuple[int, ...], config: ModelConfig, layers: LayerMaker, what: str):
        self._filters = _filters_for(shape, config, what)
        self._activation = config.conv_activation
        self._layers = layers
        self.size_out = _size_out(shape, self._filters, what)

    def __call__(self, image: Any, prefix: str) -> Any:
        """Calls layers `<prefix>1..n` on a Keras tensor [B, H, W, C]; the result is flattened."""
        last = len(self._filters)
        for index, (channels, kernel, stride) in enumerate(self._filters, start=1):
            padding = "valid" if index == last else "same"
            convolution = self._layers.conv(
                f"{prefix}{index}", channels, kernel, stride, padding, self._activation, HIDDEN_GAIN
            )
            image = convolution(image)
        return self._layers.flatten(f"{prefix.removesuffix('_')}_flat")(image)


def _filters_for(shape: tuple[int, ...], config: ModelConfig, what: str) -> list[ConvFilter]:
    filters = config.conv_filters
    if filters is None:
        size = (shape[0], shape[1])
        if size not in DEFAULT_FILTERS:
            sizes = ", ".join(f"{height} x {width}" for height, width in DEFAULT_FILTERS)
            raise ValueError(
                f"`{what}`: there are default convolutions for images of {sizes}, but this one has "
                f"the shape {shape}. Set `conv_filters` to [[out channels, kernel, stride], ...]; "
                f"`conv_filters=[]` flattens it for a fully connected network."
            )
        filters = DEFAULT_FILTERS[size]
    return [_filter(entry) for entry in filters]


def _filter(entry: Any) -> ConvFilter:
    if isinstance(entry, (list, tuple)) and len(entry) == 3:
        channels, kernel, stride = entry[0], _pair(entry[1]), _pair(entry[2])
        if _is_size(channels) and kernel is not None and stride is not None:
            return ConvFilter(channels, kernel, stride)
    raise ValueError(
        f"`conv_filters`: expected [out channels, kernel, stride], kernel and stride as a number "
        f"or as [height, width], all positive; got {entry!r}."
    )


def _pair(value: Any) -> Pair | None:
    """A number or a pair of them as a pair; `None` if it is neither."""
    pair = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
    return pair if len(pair) == 2 and all(map(_is_size, pair)) else None


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _size_out(shape: tuple[int, ...], filters: list[ConvFilter], what: str) -> Pair:
    """Height and width after the last convolution."""
    size = [shape[0], shape[1]]
    for _, _, stride in filters[:-1]:
        size = [-(-side // step) for side, step in zip(size, stride, strict=True)]
    _, kernel, stride = filters[-1]
    left = [side - k for side, k in zip(size, kernel, strict=True)]
    if min(left) < 0:
        raise ValueError(
            f"`conv_filters`: the last kernel must be at most {size[0]} x {size[1]}, which is what "
            f"the convolutions before it leave of `{what}` of shape {shape}; "
            f"got {kernel[0]} x {kernel[1]}."
        )
    return left[0] // stride[0] + 1, left[1] // stride[1] + 1
