"""The cells of the feature table: a file of definitions, and a file for each library."""
