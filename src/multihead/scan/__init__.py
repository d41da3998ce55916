"""Linear-time attention: recurrences with a state, each as a law, in chunks and step by step."""
