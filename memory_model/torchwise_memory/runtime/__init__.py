"""The eager runtime without values: tensors that have shape, strides, dtype and storage; a tape; a backward
engine.

Lifetimes are CPython's own. A storage frees its block when its last reference dies, so nothing in this
package may form a reference cycle or keep a frame alive: the collector is off while a program runs.
"""
