"""The memory driver: one concrete path through a script, over tensors that have no values.

The evaluator walks lowered nodes and mirrors CPython's lifetimes, because a tensor's memory is given
back when its last reference goes. Values of the program are either objects of `values` or plain
carriers (`int`, `str`, `list`, ...) that are only ever touched through closed tables: interpreted
source cannot reach an attribute of an object of ours.
"""
