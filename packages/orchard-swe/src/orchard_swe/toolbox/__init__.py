"""Files that are shown read-only inside sandboxes: the agent's small tools and the test runner.

They use the standard library alone and start with `python -I -S`, in about 15 ms.
"""
