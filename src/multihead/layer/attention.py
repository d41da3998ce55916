"""The module: projections, heads, concatenation, output projection."""



