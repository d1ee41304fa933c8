"""Runs recipes: stages in order, durable, resumable after any interruption."""
