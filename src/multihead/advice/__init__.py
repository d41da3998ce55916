"""What attention costs, and what suits a model and a machine."""
