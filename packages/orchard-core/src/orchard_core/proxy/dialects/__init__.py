"""The wire protocols that harnesses speak, as pure translation."""
