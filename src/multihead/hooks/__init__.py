"""The hooks room (under construction)."""
