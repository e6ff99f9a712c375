"""Toolkit for devices that wrap an engine: a program that compiles and runs whole models by itself.

`device` has the hooks, for which a plugin says what its engine accepts, gets wrong, and how it compiles; they stand on `probing` (asks the
engine about nodes), `stamping` (opsets that it knows), `known_errors` (tables of what it gets wrong), `inspection` (what is known of a
node's inputs), `installation` (whether it is there) and `arrays` (where arrays lie). Nothing here knows an engine.
"""
