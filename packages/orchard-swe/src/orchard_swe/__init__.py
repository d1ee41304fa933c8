"""The software-engineering domain of Orchard: mined repair tasks, grading, recipes."""

__version__ = "0.1.0"
