"""Value models, best-of-N selection and lineage for Orchard."""

__version__ = "0.1.0"
