"""What a training step does to GPU memory: a runtime without values. Knows no source code."""
