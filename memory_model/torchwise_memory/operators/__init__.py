"""One entry an autograd operator, by theme. `library.py` gathers them into tables."""
