"""Training on vector environments: rollouts, the training loop, logs, evaluation."""
