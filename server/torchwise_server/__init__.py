"""The language server and the command line of torchwise."""

__version__ = "0.1.0"
