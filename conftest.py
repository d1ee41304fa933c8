"""What the tests of all packages share: the engines of tests/engines.py."""

pytest_plugins = ["engines"]
