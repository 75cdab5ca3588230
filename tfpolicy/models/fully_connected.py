"""Fully connected networks for the policy and its value function."""

from __future__ import annotations

from tfpolicy.models.encoder import VectorEncoder
from tfpolicy.models.feed_forward import FeedForward


class FullyConnected(FeedForward):
    """Hidden layers `fc_1..n`, heads `fc_out` and `value_out`; values have layers of their own.

    The observation is flattened to one vector, whatever its space. With `vf_share_layers` the value
    head reads the policy's last hidden layer, else it has its own hidden layers `fc_value_1..n`.
    """

    encoder_class = VectorEncoder
    name = "fully_connected"
