"""Offline jobs over a store; the jobs themselves arrive with clean-up, this is their layer."""
