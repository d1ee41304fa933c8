"""Planting faults, and guessing their repairs, with one set of tables."""

from orchard_swe.mutation.candidates import candidate_edits
from orchard_swe.mutation.edits import LineEdit, apply_edit, substitute
from orchard_swe.mutation.operators import Fault, find_faults

__all__ = ["Fault", "LineEdit", "apply_edit", "candidate_edits", "find_faults", "substitute"]
