"""Formulas as functions of tensors: one formula a function, no variables."""
