"""Interpreters of training code: one language core, two drivers."""
