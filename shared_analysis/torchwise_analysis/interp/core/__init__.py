"""What both drivers know of the Python language, whatever their values are.

Nothing here knows tensors, states or traces: binding of arguments, method resolution order, the
operators on constants (bounded, so that hostile source cannot exhaust us), names of modules.
"""
