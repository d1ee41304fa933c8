"""The web-navigation domain of Orchard: action space and task lists."""

__version__ = "0.1.0"
