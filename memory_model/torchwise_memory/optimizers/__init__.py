"""Optimizers, learning-rate schedules and gradient scaling."""
