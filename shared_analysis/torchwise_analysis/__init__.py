"""Reads training code: source, interpreter, rules, training plan. Knows no editor protocol."""
