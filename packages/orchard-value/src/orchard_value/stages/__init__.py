"""The stages that this package adds to recipes: value and select."""
