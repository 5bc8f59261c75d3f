"""Eq. 49 over all steps at once."""

from neurolsc.neurons.scan.run import Layer, scan

__all__ = ["Layer", "scan"]
