"""A model whose forbidden actions are masked, around a model that knows nothing of masks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfpolicy.models.action_mask import ActionMask
from tfpolicy.models.base import Model, ModelOutput
from tfpolicy.models.wrapper import ObservationWrapper
from tfpolicy.ops.masking import mask_logits
from tfpolicy.view_requirement import ViewRequirement


class Masked(ObservationWrapper):
    """Hands the observation proper to another model, and masks the logits that it returns.

    Its Keras model is that of the inner one: what that gives is not masked.

    Args:
        inner: A model of the observation proper.
        mask: Reads the masks out of observations.
    """

    def __init__(self, inner: Model, mask: ActionMask):
        super().__init__(inner, mask.observation_space)
        self._mask = mask

    def inner_observation(self, observation: Any) -> Any:
        """The observation without the mask."""
        return observation[self._mask.observations_key]

    def __call__(self, columns: Mapping[str, Any]) -> ModelOutput:
        """Builds the forward pass of the inner model on `columns["obs"]` without the mask."""
        output = super().__call__(columns)
        logits = mask_logits(output.dist_inputs, self._mask.allowed(columns["obs"]))
        return output._replace(dist_inputs=logits)

    def check_observations(self, leaves: Sequence[np.ndarray]) -> None:
        """Refuses rows in which no action is allowed."""
        self._mask.check(leaves)

    def view_requirements(self) -> dict[str, ViewRequirement]:
        """Those of the inner model; what it sees of observations has the mask beside it."""
        observations = {
            name: dataclasses.replace(view, space=self.observation_space)
            for name, view in self.observation_views().items()
        }
        return {**super().view_requirements(), **observations}
