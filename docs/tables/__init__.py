"""Tables of measured figures in the texts, made from the results of the benchmarks.

- results: what all tables are made with; pages: where they stand
- reached, speed, elsewhere, study, claims: the tables, a function each
"""
