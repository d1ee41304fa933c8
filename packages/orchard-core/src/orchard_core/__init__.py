"""Sandboxes, recording proxy, harnesses, trajectories and trainers of Orchard."""

__version__ = "0.1.0"
