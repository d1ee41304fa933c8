"""An example of a domain for Orchard, in a package of its own."""
