"""The personal-assistant domain of Orchard: task files and scoring."""

__version__ = "0.1.0"
