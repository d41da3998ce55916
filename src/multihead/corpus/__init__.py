"""The corpus room (under construction)."""
